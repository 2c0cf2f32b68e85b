"""generation_config.json: ids that end a text, and what sampling is by default."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from reprise import LLM, SamplingParams, load_model_config

OPTIONS = {"max_model_len": 100, "num_threads": 1, "use_tqdm": False}


@pytest.fixture
def folder(data_dir: Path, tmp_path: Path) -> Path:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(data_dir / "v41-tiny" / name)
    return tmp_path


def write(folder: Path, **fields: Any) -> None:
    (folder / "generation_config.json").write_text(json.dumps(fields))


def test_its_eos_ids_end_a_text(folder: Path, data_dir: Path) -> None:
    values = load_file(data_dir / "v41-tiny" / "expected.safetensors")
    prompt, tokens = values["0.prompt"].tolist(), values["0.bounded.tokens"].tolist()
    last = next(i for i in range(2, len(tokens)) if tokens[i] not in tokens[:i])
    write(folder, eos_token_id=[1, tokens[last]])
    assert load_model_config(folder).eos_token_ids == [1, tokens[last]]
    llm = LLM(folder, **OPTIONS)
    output = llm.generate([prompt], SamplingParams(max_tokens=len(tokens), temperature=0), use_tqdm=False)[0]
    assert output.outputs[0].token_ids == tokens[: last + 1]
    assert output.outputs[0].finish_reason == "stop"


def test_its_defaults_are_what_generate_takes(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert LLM(folder, **OPTIONS).get_default_sampling_params() == SamplingParams()
    write(folder, do_sample=False, temperature=0.6, top_p=0.9, top_k=5, max_new_tokens=3, repetition_penalty=1.2)
    with caplog.at_level(logging.WARNING, "reprise"):
        llm = LLM(folder, **OPTIONS)
    assert "repetition_penalty = 1.2, which is not applied" in caplog.text
    assert "defaults of sampling from generation_config.json: temperature = 0.0, top_p = 0.9, top_k = 5" in caplog.text
    defaults = llm.get_default_sampling_params()
    assert defaults == SamplingParams(temperature=0, top_p=0.9, top_k=5, max_tokens=3)
    defaults.max_tokens = 50  # the caller's own copy
    first, second = llm.generate([[5, 6, 7]] * 2, use_tqdm=False)
    assert len(first.outputs[0].token_ids) == 3
    assert first.outputs[0].token_ids == second.outputs[0].token_ids  # greedy
    # Explicit parameters win, whole.
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    assert len(llm.generate([[5, 6, 7]], params, use_tqdm=False)[0].outputs[0].token_ids) == 5


def test_stop_strings_need_a_tokenizer(folder: Path, data_dir: Path) -> None:
    write(folder, stop_strings=["END"])
    assert LLM(folder, **OPTIONS).get_default_sampling_params().stop is None
    llm = LLM(folder, tokenizer=data_dir / "v41-tiny-engram", **OPTIONS)
    assert llm.get_default_sampling_params().stop == ["END"]


def test_what_is_wrong_is_named(folder: Path) -> None:
    write(folder, temperature=-1, top_p=2, eos_token_id="x")
    with pytest.raises(ValueError, match=r"generation_config\.json\] 3 problems") as error:
        LLM(folder, **OPTIONS)
    for field in ("temperature: ", "top_p: ", "eos_token_id: "):
        assert field in str(error.value)
