"""Sampling parameters, text from tokens, and sampled tokens against the golden distributions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from reprise import LLM, SamplingParams, Tokenizer
from reprise import _reprise as binding
from reprise.outputs import OutputBuilder
from reprise.tokenizer import IncrementalDetokenizer

DATA = Path(__file__).resolve().parent.parent / "data"
TOKENIZER_FILE = DATA / "v41-tiny-engram" / "tokenizer.json"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(TOKENIZER_FILE)


@pytest.fixture(scope="module")
def oracle() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(TOKENIZER_FILE))


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(DATA / "v41-tiny", max_model_len=128, max_num_seqs=200, num_threads=1, poison_cache=True, use_tqdm=False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", -0.1),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_p", math.nan),
        ("top_k", -2),
        ("top_k", 2**70),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("min_p", math.nan),
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("logprobs", -2),
        ("prompt_logprobs", -2),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", ["a"]),
        ("stop", ["ok", ""]),
        ("stop", [5]),
        ("replay", "sometimes"),
    ],
)
def test_bad_value_names_its_field(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        SamplingParams(**{field: value})


def test_values_at_the_edge_are_accepted() -> None:
    SamplingParams(max_tokens=0, temperature=0, top_p=1, top_k=-1, min_p=1, logprobs=-1, prompt_logprobs=0, seed=-1)
    SamplingParams(max_tokens=None, top_k=0, min_p=0, stop="x", stop_token_ids=None, replay="exact")


@settings(deadline=None)
@given(st.lists(st.integers(0, 287), max_size=40))
def test_pieces_join_to_the_whole_text(ids: list[int]) -> None:
    tokenizer = Tokenizer(TOKENIZER_FILE)
    detokenizer = IncrementalDetokenizer(tokenizer)
    pieces = [detokenizer.add(token) for token in ids] + [detokenizer.flush()]
    assert "".join(pieces) == tokenizers.Tokenizer.from_file(str(TOKENIZER_FILE)).decode(ids)


def test_a_character_comes_whole(tokenizer: Tokenizer, oracle: tokenizers.Tokenizer) -> None:
    text = "a世😀é!"
    ids = oracle.encode(text).ids
    assert len(ids) > len(text), "the test wants characters of several tokens"
    detokenizer = IncrementalDetokenizer(tokenizer)
    pieces = [piece for piece in map(detokenizer.add, ids) if piece]
    assert pieces == list(text)
    assert detokenizer.flush() == ""


def test_an_incomplete_character_comes_at_the_end(tokenizer: Tokenizer, oracle: tokenizers.Tokenizer) -> None:
    ids = oracle.encode("x😀").ids[:-1]
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert "".join(map(detokenizer.add, ids)) == "x"
    assert detokenizer.flush() == "\ufffd"


def byte_tokenizer(folder: Path, decoder: tokenizers.decoders.Decoder, name: Callable[[int], str]) -> Tokenizer:
    """Token b is the byte b, 256 is "ok", 257 is special."""
    vocabulary = {name(byte): byte for byte in range(256)} | {"ok": 256}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="ok"))
    plain.add_special_tokens(["<end>"])
    plain.decoder = decoder
    plain.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)


@pytest.fixture(scope="module", params=["byte level", "byte fallback"])
def bytes_tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("bytes")
    if request.param == "byte fallback":
        decoders = [tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
        return byte_tokenizer(folder, tokenizers.decoders.Sequence(decoders), lambda byte: f"<0x{byte:02X}>")
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]  # GPT-2's names of bytes
    others = [byte for byte in range(256) if byte not in printable]
    return byte_tokenizer(
        folder, tokenizers.decoders.ByteLevel(), lambda b: chr(b if b in printable else 256 + others.index(b))
    )


@pytest.mark.parametrize(
    "ids",
    [
        pytest.param([257] * 1500, id="special tokens"),
        pytest.param([0x80] * 1500, id="bytes that begin nothing"),
        pytest.param([0xE4] * 1500, id="characters that never end"),
        pytest.param([0xF0, 0x9F, 0x98] * 500, id="three bytes of four"),
        pytest.param([400] * 1500, id="ids without a token"),
    ],
)
def test_each_token_is_decoded_a_few_times_only(
    bytes_tokenizer: Tokenizer, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [256, *ids, 0xE4, 0xB8, 0x96, 256]
    whole = bytes_tokenizer.decode(ids)
    longest = 0

    def decode(token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        nonlocal longest
        longest = max(longest, len(token_ids))
        return bytes_tokenizer.backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    monkeypatch.setattr(bytes_tokenizer, "decode", decode)
    detokenizer = IncrementalDetokenizer(bytes_tokenizer)
    assert "".join([*map(detokenizer.add, ids), detokenizer.flush()]) == whole
    assert longest < 30


# Stray bytes, beginnings and ends of characters. Byte level only: a byte fallback decoder takes a whole character back
# when a stray byte follows it.
@settings(deadline=None, max_examples=300)
@given(ids=st.lists(st.sampled_from([0x80, 0x96, 0xB8, 0xC3, 0xE4, 0xF0, 0xFF, 256, 257]), max_size=60))
@pytest.mark.parametrize("bytes_tokenizer", ["byte level"], indirect=True)
def test_broken_bytes_join_to_the_whole_text(bytes_tokenizer: Tokenizer, ids: list[int]) -> None:
    detokenizer = IncrementalDetokenizer(bytes_tokenizer)
    assert "".join([*map(detokenizer.add, ids), detokenizer.flush()]) == bytes_tokenizer.decode(ids)


def test_spaces_survive_a_decoder_that_trims_the_first_one(tmp_path: Path) -> None:
    vocabulary = {"▁hello": 0, "▁world": 1, "s": 2}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="s"))
    plain.decoder = tokenizers.decoders.Metaspace()
    plain.save(str(tmp_path / "tokenizer.json"))
    detokenizer = IncrementalDetokenizer(Tokenizer(tmp_path))
    assert [detokenizer.add(token) for token in (0, 1, 2, 1)] == ["hello", " world", "s", " world"]


def engine_steps(
    tokens: list[int], reason: binding.FinishReason = binding.FinishReason.kLength
) -> list[SimpleNamespace]:
    """One step per token, as the engine brings them; the last one ends the request."""
    return [
        SimpleNamespace(
            new_token_ids=[token],
            logprobs=[],
            prompt_logprobs=[],
            hidden_states=[],
            finished=i + 1 == len(tokens),
            finish_reason=reason if i + 1 == len(tokens) else binding.FinishReason.kNone,
            stop_token_id=-1,
            error="",
            metrics=SimpleNamespace(
                time_to_first_token=0.0,
                total_time=0.0,
                prompt_rows=1,
                cached_rows=0,
                encoder_rows_run=1,
                replay_rows_run=1,
                replay_rows_by_layer=[1],
                preemptions=0,
                replay_mode=binding.ReplayMode.kOff,
                replay_reason="",
            ),
        )
        for i, token in enumerate(tokens)
    ]


@pytest.mark.parametrize(
    ("stop", "text", "reason", "seen"),
    [
        ("lo w", "hel", "lo w", "hello w"),  # across tokens
        (["world", "o"], "hell", "o", "hello"),  # the one that comes first
        (["lo wor", "o"], "hell", "o", "hello"),  # a longer one had begun before
        ("!", "hello world", "!", "hello world!"),  # by the last token: stopped, not out of length
        ("hello world!?", "hello world!", None, "hello world!"),  # only begun
    ],
)
def test_stop_strings(
    tokenizer: Tokenizer, oracle: tokenizers.Tokenizer, stop: str | list[str], text: str, reason: str | None, seen: str
) -> None:
    builder = OutputBuilder(None, [0], SamplingParams(stop=stop), tokenizer, hidden_size=4)
    ids = oracle.encode("hello world!").ids
    for step in engine_steps(ids):
        if builder.add(step):  # the engine must end it now
            break
    completion = builder.output.outputs[0]
    assert completion.text == text
    assert completion.stop_reason == reason
    assert completion.finish_reason == ("length" if reason is None else "stop")
    assert oracle.decode(completion.token_ids) == seen


def test_what_comes_after_a_stop_string_is_not_added(tokenizer: Tokenizer, oracle: tokenizers.Tokenizer) -> None:
    builder = OutputBuilder(None, [0], SamplingParams(stop="x"), tokenizer, hidden_size=4)
    steps = engine_steps(oracle.encode("wxyz").ids, binding.FinishReason.kAbort)
    assert [builder.add(step) for step in steps] == [False, True, True, False]
    completion = builder.output.outputs[0]
    assert builder.output.finished
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("w", "stop", "x")
    assert oracle.decode(completion.token_ids) == "wx"


# Prompt 0 of v41-tiny, whose next-token distribution is golden.
def golden_probabilities() -> torch.Tensor:
    golden = load_file(DATA / "v41-tiny" / "expected.safetensors")
    return golden["0.full.logits"][0].double().softmax(-1)


def sample_first_tokens(llm: LLM, draws: int, **params: object) -> Counter[int]:
    golden = load_file(DATA / "v41-tiny" / "expected.safetensors")
    prompts = [{"prompt_token_ids": golden["0.prompt"].tolist()}] * draws
    requests = [SamplingParams(max_tokens=1, seed=seed, ignore_eos=True, **params) for seed in range(draws)]
    outputs = llm.generate(prompts, requests, use_tqdm=False)
    return Counter(output.outputs[0].token_ids[0] for output in outputs)


def assert_follows(counts: Counter[int], probabilities: torch.Tensor) -> None:
    """Five standard deviations of a binomial for each token, and nothing outside the support."""
    draws = counts.total()
    for token, p in enumerate(probabilities.tolist()):
        assert p > 0 or counts[token] == 0, f"token {token} was cut"
        assert abs(counts[token] - draws * p) <= 5 * math.sqrt(draws * p * (1 - p)) + 1, f"token {token}"


def test_sampled_tokens_follow_the_golden_distribution(llm: LLM) -> None:
    probabilities = golden_probabilities()
    assert_follows(sample_first_tokens(llm, 400, temperature=1.0), probabilities)
    tempered = probabilities.pow(1 / 0.3)
    assert_follows(sample_first_tokens(llm, 400, temperature=0.3), tempered / tempered.sum())


def test_filters_keep_the_golden_support(llm: LLM) -> None:
    probabilities = golden_probabilities()
    order = probabilities.argsort(descending=True)
    top_k = torch.zeros_like(probabilities)
    top_k[order[:3]] = probabilities[order[:3]]
    assert_follows(sample_first_tokens(llm, 200, top_k=3), top_k / top_k.sum())

    kept = int((probabilities[order].cumsum(0) < 0.2).sum()) + 1
    top_p = torch.zeros_like(probabilities)
    top_p[order[:kept]] = probabilities[order[:kept]]
    assert_follows(sample_first_tokens(llm, 200, top_p=0.2), top_p / top_p.sum())

    min_p = torch.where(probabilities >= 0.5 * probabilities.max(), probabilities, 0.0)
    assert_follows(sample_first_tokens(llm, 200, min_p=0.5), min_p / min_p.sum())


def test_a_seed_gives_the_same_tokens_alone_and_among_others(llm: LLM) -> None:
    prompt = [5, 17, 3, 250, 9, 9, 31, 8, 100, 2]
    params = SamplingParams(max_tokens=12, seed=41, ignore_eos=True)
    alone = llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids
    others = [SamplingParams(max_tokens=n, seed=n, ignore_eos=True) for n in (3, 9, 20)]
    prompts = [[1, 2, 3], [7] * 30, prompt, [9]]
    among = llm.generate(prompts, [others[0], others[1], params, others[2]], use_tqdm=False)[2].outputs[0].token_ids
    assert among == alone
    other_seed = SamplingParams(max_tokens=12, seed=42, ignore_eos=True)
    assert llm.generate(prompt, other_seed, use_tqdm=False)[0].outputs[0].token_ids != alone


def test_without_a_seed_requests_differ(llm: LLM) -> None:
    outputs = llm.generate([[5, 17, 3]] * 4, SamplingParams(max_tokens=12, ignore_eos=True), use_tqdm=False)
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) > 1
