"""How tokens are chosen and when a request ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from reprise import _reprise

REPLAY_MODES = {
    "off": _reprise.ReplayMode.kOff,
    "bounded": _reprise.ReplayMode.kBounded,
    "exact": _reprise.ReplayMode.kExact,
    "last_row": _reprise.ReplayMode.kLastRow,
    "step": _reprise.ReplayMode.kStep,
}
REPLAY_NAMES = {mode: name for name, mode in REPLAY_MODES.items()}

# Stands for the vocabulary where it is not known yet; the engine checks ids against the real one.
_ANY_VOCABULARY = 2**31 - 1


def replay_mode(name: str) -> _reprise.ReplayMode:
    """The engine's mode for one of "off", "bounded", "exact", "last_row", "step"."""
    if isinstance(name, _reprise.ReplayMode):
        return name
    if name not in REPLAY_MODES:
        raise ValueError(f"wanted replay to be one of {', '.join(REPLAY_MODES)} but got {name!r}")
    return REPLAY_MODES[name]


@dataclass
class SamplingParams:
    """Sampling parameters of one request. Raises ValueError for a value that is NaN or out of range.

    Attributes:
        max_tokens: tokens to generate at most; 0 = run the prompt only, None = as many as the engine can hold.
        temperature: 0 = greedy.
        top_p: in (0, 1]; the smallest set of most likely tokens whose probability reaches it.
        top_k: 0 or -1 = off.
        min_p: in [0, 1]; a share of the most likely token's probability.
        seed: makes a request's tokens a function of its logits alone; None = drawn by the engine.
        stop: strings that end the request; the text ends before the first of them.
        stop_token_ids: tokens that end the request; they stay in `token_ids` but not in `text`.
        ignore_eos: go on past the end-of-sequence token.
        logprobs: likeliest entries per generated token, beside the chosen one's; -1 = the whole vocabulary.
        prompt_logprobs: the same per prompt token; such a prompt is never trimmed.
        skip_special_tokens: leave special tokens out of `text`.
        return_hidden_states: hidden states after the last layer for every row; never trimmed.
        replay: overrides the engine's replay mode for this request.
        priority: lower runs first.
        timeout_s: seconds from submit until the request ends as timed out; 0 = none.
    """

    max_tokens: int | None = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = field(default_factory=list)
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    return_hidden_states: bool = False
    replay: str | None = None
    priority: int = 0
    timeout_s: float = 0.0

    def __post_init__(self) -> None:
        self.check()

    def stop_strings(self) -> list[str]:
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else list(self.stop)

    def check(self) -> None:
        """Raises ValueError naming the first field that no engine could serve."""
        for text in self.stop_strings():
            if not isinstance(text, str) or not text:
                raise ValueError(f"wanted stop to hold non-empty strings but got {text!r}")
        if self.replay is not None:
            replay_mode(self.replay)
        _reprise.check_sampling_params(self.to_engine(default_max_tokens=0), _ANY_VOCABULARY)

    def to_engine(self, default_max_tokens: int) -> _reprise.SamplingParams:
        """The engine's form; `default_max_tokens` stands in for max_tokens=None."""
        params = _reprise.SamplingParams()
        values = {
            "max_tokens": default_max_tokens if self.max_tokens is None else self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "seed": None if self.seed is None else int(self.seed) % 2**64,
            "stop_token_ids": list(self.stop_token_ids or ()),
            "ignore_eos": self.ignore_eos,
            "logprobs": self.logprobs,
            "prompt_logprobs": self.prompt_logprobs,
            "return_hidden_states": self.return_hidden_states,
        }
        for name, value in values.items():
            try:
                setattr(params, name, value)
            except TypeError:
                raise ValueError(
                    f"wanted {name} to be a value that fits the engine's field but got {value!r}"
                ) from None
        return params
