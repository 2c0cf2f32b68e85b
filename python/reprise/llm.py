"""Offline generation with a checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import operator
import os
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reprise import _reprise
from reprise.engram import VOCABULARY_FILE, checkpoint_vocabulary, compressed_vocabulary
from reprise.generation_config import default_sampling_params
from reprise.outputs import OutputBuilder, RequestOutput
from reprise.progress import generate_progress, load_progress
from reprise.sampling_params import SamplingParams, replay_mode
from reprise.tokenizer import Tokenizer
from reprise.tokenizer_files import has_tokenizer

logger = logging.getLogger("reprise")

Prompt = str | Sequence[int] | Mapping[str, Any]

_DTYPES = {
    "auto": _reprise.Dtype.kAuto,
    "float32": _reprise.Dtype.kFloat32,
    "bfloat16": _reprise.Dtype.kBFloat16,
}
_CACHE_DTYPES = {"auto": _reprise.CacheDtype.kAuto, "model": _reprise.CacheDtype.kModel}
_PREFIX_REBUILDS = {
    "auto": _reprise.PrefixRebuild.kAuto,
    "exact": _reprise.PrefixRebuild.kExact,
    "bounded": _reprise.PrefixRebuild.kBounded,
}


def _choose(name: str, value: object, choices: Mapping[str, Any]) -> Any:
    key = str(value).removeprefix("torch.")  # torch.float32 and "float32" are the same wish
    if key not in choices:
        raise ValueError(f"wanted {name} to be one of {', '.join(choices)} but got {value!r}")
    return choices[key]


def engine_config_from(options: Mapping[str, Any]) -> _reprise.EngineConfig:
    """LLM's options as an EngineConfig. Raises ValueError for a wrong value, TypeError for an unknown name."""
    config = _reprise.EngineConfig()
    named = {"dtype": _DTYPES, "kv_cache_dtype": _CACHE_DTYPES, "prefix_rebuild": _PREFIX_REBUILDS}
    for name, value in options.items():
        if name in named:
            value = _choose(name, value, named[name])
        elif name == "replay":
            value = replay_mode(value)
        elif not hasattr(config, name):
            raise TypeError(f"LLM() got an unexpected option {name!r}")
        try:
            setattr(config, name, value)
        except TypeError:
            default = getattr(config, name)
            wanted = "function" if default is None else type(default).__name__
            raise ValueError(f"wanted {name} to be of type {wanted} but got {value!r}") from None
    return config


@dataclass
class _ParsedPrompt:
    text: str | None
    token_ids: list[int]


class LLM:
    """A checkpoint behind vLLM's offline interface.

    Args:
        model: Hugging Face folder (config.json, safetensors; tokenizer.json for text prompts).
        dtype: "auto" (the checkpoint's), "float32" or "bfloat16".
        device: "cpu".
        replay: which prompt rows the replay layers run on: "bounded" (the prompt's last window, an approximation),
            "exact" (all rows the result depends on, equal to "off"), "off", "last_row" or "step".
        kv_cache_dtype: "auto" (the released cache formats) or "model" (no rounding).
        kv_cache_memory: bytes for all caches; 0 = a share of the free memory.
        tokenizer: a tokenizer.json or its folder; default the model's.
        use_tqdm: show progress while loading.
        engine_options: further fields of EngineConfig: max_num_seqs, max_num_batched_tokens, max_model_len, page_size,
            num_threads, enable_prefix_caching, prefix_rebuild ("auto", "exact", "bounded"), poison_cache, max_waiting,
            graph_buckets (row counts that steps run from graphs of fixed shape for, each with memory of its own; none
            by default).

    `engine` is the engine underneath. While generate() runs it alone steps the engine: what others submit then runs
    too, but its outputs are lost.

    Raises ValueError that says what is wrong with the checkpoint or an option.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        dtype: Any = "auto",
        device: str = "cpu",
        replay: str = "bounded",
        kv_cache_dtype: str = "auto",
        kv_cache_memory: int = 0,
        prefix_rebuild: str = "auto",
        tokenizer: str | Path | None = None,
        skip_tokenizer_init: bool = False,
        use_tqdm: bool = True,
        **engine_options: Any,
    ) -> None:
        if str(device) != "cpu":
            raise ValueError(f"wanted device 'cpu', which this build runs on, but got {str(device)!r}")
        config = engine_config_from(
            {
                "dtype": dtype,
                "replay": replay,
                "kv_cache_dtype": kv_cache_dtype,
                "kv_cache_memory": kv_cache_memory,
                "prefix_rebuild": prefix_rebuild,
                **engine_options,
            }
        )
        model = os.fsdecode(model)
        model_config = _reprise.load_model_config(model)
        self._tokenizer = None
        if tokenizer is not None or (not skip_tokenizer_init and has_tokenizer(model)):
            self._tokenizer = Tokenizer(model if tokenizer is None else tokenizer)
        if model_config.engram_layer_ids and not _reprise.stands_at(Path(model) / VOCABULARY_FILE):
            # Of the tokenizer that was given, else of the checkpoint's own, also where text is not wanted.
            config.engram_vocabulary = (
                checkpoint_vocabulary(model)
                if tokenizer is None
                else compressed_vocabulary(self._tokenizer.backend, model_config.vocab_size)
            )
        self._default_sampling_params, default_notice = default_sampling_params(model, self._tokenizer is not None)
        with load_progress(use_tqdm) as on_load_progress:
            config.on_load_progress = on_load_progress
            self.engine = _reprise.Engine.load(model, config)
        stats = self.engine.stats()
        tokenizer_notices = self._tokenizer.notices if self._tokenizer is not None else []
        replay_notice = stats.replay_reason and f"replay is off: {stats.replay_reason}"
        for notice in (stats.load_notice, *tokenizer_notices, default_notice, replay_notice):
            if notice:
                logger.warning("%s: %s", model, notice)
        self.model = model
        self._lock = threading.Lock()  # one generate at a time: the engine steps on one thread

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Continues prompts; outputs come in the order of the prompts.

        Args:
            prompts: a string, token ids, {"prompt_token_ids": [...]} or {"prompt": "..."}, or a list of these.
            sampling_params: one for all prompts, or one per prompt.

        Raises ValueError, naming the prompt, before anything has run if any of them cannot be served, and when `engine`
        holds requests of others, whose outputs its steps would take. Interrupting it (Ctrl-C) ends its requests and
        leaves the engine usable.
        """
        parsed = self._parse_prompts(prompts)
        params = self._params_for(sampling_params, len(parsed))
        with self._lock:
            return self._run(parsed, params, use_tqdm)

    @property
    def has_tokenizer(self) -> bool:
        return self._tokenizer is not None

    def get_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise ValueError(f"wanted a tokenizer but {self.model} was loaded without one: pass tokenizer=")
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What generate() takes where it is given none: as generation_config.json says, else SamplingParams()."""
        return dataclasses.replace(self._default_sampling_params)

    def stats(self) -> _reprise.EngineStats:
        return self.engine.stats()

    def _run(self, prompts: list[_ParsedPrompt], params: list[SamplingParams], use_tqdm: bool) -> list[RequestOutput]:
        if self.engine.has_unfinished():
            raise ValueError(
                "[generate] wanted an engine without requests of others but it has some; call engine.step() and take "
                "their outputs until has_unfinished() is False, or abort them"
            )
        running: dict[int, OutputBuilder] = {}
        outputs: list[RequestOutput] = []
        try:
            for i, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
                builder = OutputBuilder(
                    prompt.text, prompt.token_ids, one, self._tokenizer, self.engine.model_facts().hidden_size
                )
                request_id = self._submit(i, prompt, one)
                running[request_id] = builder
                builder.output.request_id = str(request_id)
                outputs.append(builder.output)
            with generate_progress(len(prompts), use_tqdm) as progress:
                while running:
                    self._step(running, progress)
        except BaseException:
            for request_id in running:
                self.engine.abort(request_id)
            with contextlib.suppress(Exception):
                self.engine.step()  # collects the aborted requests' last outputs
            raise
        for output in outputs:
            if output.error:
                warnings.warn(f"request {output.request_id} was given up: {output.error}", RuntimeWarning, stacklevel=3)
        return outputs

    def _step(self, running: dict[int, OutputBuilder], progress: Any) -> None:
        finished = new_tokens = 0
        for step in self.engine.step():
            builder = running.get(step.id)
            if builder is None:  # someone else's, submitted meanwhile
                continue
            if builder.add(step):
                self.engine.abort(step.id)
            new_tokens += len(step.new_token_ids)
            if step.finished:
                del running[step.id]
                finished += 1
        progress(finished, new_tokens)

    def _submit(self, index: int, prompt: _ParsedPrompt, params: SamplingParams) -> int:
        room = max(self.engine.stats().max_model_len - len(prompt.token_ids), 0) if params.max_tokens is None else 0
        try:
            request = _reprise.Request(
                prompt.token_ids,
                params.to_engine(default_max_tokens=room),
                priority=params.priority,
                replay=None if params.replay is None else replay_mode(params.replay),
                timeout_s=params.timeout_s,
            )
            return self.engine.submit(request)
        except ValueError as error:
            raise ValueError(f"prompt {index}: {error}") from None

    def _params_for(self, params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
        if params is None:
            params = self.get_default_sampling_params()
        if isinstance(params, SamplingParams):
            params = [params] * count
        if len(params) != count:
            raise ValueError(f"wanted one SamplingParams or one per prompt ({count}) but got {len(params)}")
        for i, one in enumerate(params):
            if not isinstance(one, SamplingParams):
                raise ValueError(f"prompt {i}: wanted SamplingParams but got {one!r}")
            try:
                one.check()  # fields may have changed since it was made
            except ValueError as error:
                raise ValueError(f"prompt {i}: {error}") from None
            if one.stop_strings() and self._tokenizer is None:
                raise ValueError(
                    f"prompt {i}: wanted a tokenizer for stop strings but {self.model} was loaded without one"
                )
        return list(params)

    def _parse_prompts(self, prompts: Prompt | Iterable[Prompt]) -> list[_ParsedPrompt]:
        if hasattr(prompts, "tolist"):  # numpy array, torch tensor
            prompts = prompts.tolist()
        if isinstance(prompts, str | Mapping):
            prompts = [prompts]
        if not isinstance(prompts, Iterable) or isinstance(prompts, bytes):
            raise ValueError(f"wanted prompts as text, token ids or a list of these but got {prompts!r}")
        prompts = list(prompts)
        if prompts and _is_integer(prompts[0]):  # one prompt's token ids
            prompts = [prompts]
        return [self._parse_prompt(i, prompt) for i, prompt in enumerate(prompts)]

    def _parse_prompt(self, index: int, prompt: Any) -> _ParsedPrompt:
        text = None
        if isinstance(prompt, Mapping):
            if "prompt_token_ids" not in prompt and "prompt" not in prompt:
                raise ValueError(f"prompt {index}: wanted 'prompt_token_ids' or 'prompt' but got {sorted(prompt)}")
            text = prompt.get("prompt")
            prompt = prompt.get("prompt_token_ids", text)
        if isinstance(prompt, str):
            if self._tokenizer is None:
                raise ValueError(
                    f"prompt {index}: wanted token ids, since {self.model} was loaded without a tokenizer, but got text"
                )
            return _ParsedPrompt(prompt, self._tokenizer.encode(prompt))
        if hasattr(prompt, "tolist"):
            prompt = prompt.tolist()
        if (
            not isinstance(prompt, Sequence)
            or isinstance(prompt, bytes)
            or not all(_is_integer(token) for token in prompt)
        ):
            raise ValueError(f"prompt {index}: wanted text or integer token ids but got {prompt!r}")
        return _ParsedPrompt(text, [operator.index(token) for token in prompt])


def _is_integer(value: object) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool) and not hasattr(value, "__len__")
