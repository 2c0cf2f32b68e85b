"""What a request brings, and how the engine's steps add up to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from reprise import _reprise
from reprise.sampling_params import REPLAY_NAMES, SamplingParams
from reprise.tokenizer import IncrementalDetokenizer, Tokenizer

_FINISH_REASONS = {
    _reprise.FinishReason.kNone: None,
    _reprise.FinishReason.kStop: "stop",
    _reprise.FinishReason.kLength: "length",
    _reprise.FinishReason.kAbort: "abort",
    _reprise.FinishReason.kTimeout: "timeout",
}


@dataclass
class Logprob:
    """A token's natural log probability before temperature, and its rank (1 = the most likely)."""

    logprob: float
    rank: int
    decoded_token: str | None = None


LogprobEntries = dict[int, Logprob]


@dataclass
class RequestMetrics:
    """What a request cost. Times are seconds from submit; rows are prompt tokens.

    `replay_rows_run` counts prompt rows whose output a replay layer computed, summed over the replay layers.
    """

    time_to_first_token: float = 0.0
    total_time: float = 0.0
    prompt_rows: int = 0
    cached_rows: int = 0
    encoder_rows_run: int = 0
    replay_rows_run: int = 0
    replay_rows_by_layer: list[int] = field(default_factory=list)
    preemptions: int = 0
    replay_mode: str = "off"
    replay_reason: str = ""

    @classmethod
    def from_engine(cls, metrics: _reprise.RequestMetrics) -> RequestMetrics:
        values = {name: getattr(metrics, name) for name in cls.__dataclass_fields__}
        return cls(**{**values, "replay_mode": REPLAY_NAMES[metrics.replay_mode]})


@dataclass
class CompletionOutput:
    """One continuation of a prompt.

    `finish_reason` is "stop", "length", "abort" or "timeout"; `stop_reason` is the stop string or stop token id that
    ended it (None for the end-of-sequence token). `logprobs` has one dict per token, the chosen token first.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[LogprobEntries] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    hidden_states: np.ndarray | None = None  # [rows, hidden_size] float32, prompt rows first


@dataclass
class RequestOutput:
    """A prompt and what was generated for it. `error` says why the engine gave the request up, None otherwise."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[LogprobEntries | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    error: str | None = None

    @property
    def num_cached_tokens(self) -> int:
        return self.metrics.cached_rows


class OutputBuilder:
    """Adds up the engine's outputs of one request: text, stop strings, logprobs."""

    def __init__(
        self,
        prompt: str | None,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        hidden_size: int,
    ) -> None:
        self._params = params
        self._tokenizer = tokenizer
        self._hidden_size = hidden_size
        self._detokenizer = IncrementalDetokenizer(tokenizer, params.skip_special_tokens) if tokenizer else None
        self._stop_strings = params.stop_strings()
        self._hidden_states: list[np.ndarray] = []
        self._ended = False  # by a stop string: what the engine still brings is its own end only
        counted = params.logprobs is not None
        self._completion = CompletionOutput(0, "", [], 0.0 if counted else None, [] if counted else None)
        self.output = RequestOutput(
            "", prompt, list(prompt_token_ids), None, [self._completion], False, RequestMetrics()
        )

    def add(self, step: _reprise.RequestOutput) -> bool:
        """Adds one step's output. True when a stop string has just ended a request that the engine still runs."""
        self.output.finished = step.finished
        self.output.error = step.error or None
        if step.prompt_logprobs:
            self.output.prompt_logprobs = [self._entries(token) or None for token in step.prompt_logprobs]
        if self._params.return_hidden_states and not self._ended:
            self._hidden_states.append(np.array(step.hidden_states).reshape(-1, self._hidden_size))
        if not self._ended:
            self._add_tokens(step)
        if step.finished:
            self._finish(step)
        return self._ended and not step.finished

    def _add_tokens(self, step: _reprise.RequestOutput) -> None:
        completion = self._completion
        for i, token_id in enumerate(step.new_token_ids):
            completion.token_ids.append(token_id)
            if completion.logprobs is not None:
                entries = self._entries(step.logprobs[i])
                completion.logprobs.append(entries)
                completion.cumulative_logprob = math.fsum((completion.cumulative_logprob, entries[token_id].logprob))
            stops_here = step.finished and token_id == step.stop_token_id and i + 1 == len(step.new_token_ids)
            if self._detokenizer and not stops_here and self._append_text(self._detokenizer.add(token_id)):
                return

    def _append_text(self, piece: str) -> bool:
        """Adds text; True when it completes a stop string, which is then cut off with all that follows."""
        completion = self._completion
        # A stop string may have begun in earlier text, by all but its last character.
        longest = max((len(stop) for stop in self._stop_strings), default=0)
        search_from = max(0, len(completion.text) - longest + 1)
        completion.text += piece
        if not piece:
            return False
        found = [(completion.text.find(stop, search_from), stop) for stop in self._stop_strings]
        found = [(at, stop) for at, stop in found if at >= 0]
        if not found:
            return False
        at, stop = min(found, key=lambda hit: hit[0])
        completion.text = completion.text[:at]
        completion.finish_reason, completion.stop_reason = "stop", stop
        self._ended = True
        return True

    def _finish(self, step: _reprise.RequestOutput) -> None:
        self.output.metrics = RequestMetrics.from_engine(step.metrics)
        completion = self._completion
        if self._hidden_states:
            completion.hidden_states = np.concatenate(self._hidden_states)
        if self._ended or (self._detokenizer and self._append_text(self._detokenizer.flush())):
            return
        completion.finish_reason = _FINISH_REASONS[step.finish_reason]
        if step.finish_reason == _reprise.FinishReason.kStop and step.stop_token_id in (
            self._params.stop_token_ids or ()
        ):
            completion.stop_reason = step.stop_token_id

    def _entries(self, token: list[_reprise.TokenLogprob]) -> LogprobEntries:
        decode = self._tokenizer.decode_token if self._tokenizer else lambda _: None
        return {entry.token_id: Logprob(entry.logprob, entry.rank, decode(entry.token_id)) for entry in token}
