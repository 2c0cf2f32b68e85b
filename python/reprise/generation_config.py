"""The defaults of sampling that a checkpoint's generation_config.json states."""

from __future__ import annotations

import os

from reprise import _reprise
from reprise.sampling_params import SamplingParams


def default_sampling_params(
    checkpoint: str | os.PathLike[str], has_tokenizer: bool = True
) -> tuple[SamplingParams, str]:
    """What sampling is by default for a checkpoint, and a notice that says what of it the file states (empty: nothing).

    Without a tokenizer there is no text to look for stop strings in, and theirs are left out.
    Raises ValueError that names the file and every field of it that is wrong.
    """
    config = _reprise.load_generation_config(os.fsdecode(checkpoint))
    fields = {
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": config.top_k,
        "min_p": config.min_p,
        "max_tokens": config.max_new_tokens,
        "stop": (config.stop_strings or None) if has_tokenizer else None,
    }
    stated = {name: value for name, value in fields.items() if value is not None}
    text = ", ".join(f"{name} = {value}" for name, value in stated.items())
    notice = f"defaults of sampling from generation_config.json: {text}" if stated else ""
    return SamplingParams(**stated), notice
