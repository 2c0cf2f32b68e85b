"""LLM as its users see it, against the golden checkpoints."""

from __future__ import annotations

import os
import signal
import threading
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import load_file

from reprise import LLM, Request, SamplingParams
from reprise import _reprise as binding

DATA = Path(__file__).resolve().parent.parent / "data"
CHECKPOINTS = ["v41-tiny", "v41-tiny-engram", "v41-tiny-quant"]
TOLERANCE = 2e-4  # on logits, tests/data; twice that on log-softmax, whose shift is bounded by the same
GOLDEN_OF_MODE = {"off": "full", "exact": "full", "bounded": "bounded"}


@cache
def golden(checkpoint: str, kind: str = "expected") -> dict[str, torch.Tensor]:
    return load_file(DATA / checkpoint / f"{kind}.safetensors")


def golden_prompts(checkpoint: str, kind: str = "expected") -> list[list[int]]:
    values = golden(checkpoint, kind)
    return [values[f"{i}.prompt"].tolist() for i in range(sum(name.endswith(".prompt") for name in values))]


@cache
def llm_of(checkpoint: str, kind: str = "expected") -> LLM:
    return LLM(
        DATA / checkpoint,
        dtype="float32",
        replay="off",
        kv_cache_dtype="auto" if kind == "expected" else "model",
        max_model_len=1024,
        max_num_batched_tokens=100,  # cuts the longer prompts into chunks
        page_size=16,
        num_threads=1,  # the layers are tiny
        poison_cache=True,
        use_tqdm=False,
    )


@pytest.fixture
def llm() -> LLM:
    return llm_of("v41-tiny-engram")


def greedy(**fields: object) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 12, "temperature": 0, "ignore_eos": True, **fields})


def tokens_of(outputs: list) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("mode", GOLDEN_OF_MODE)
@pytest.mark.parametrize("kind", ["expected", "expected_plain"])
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_golden_tokens_and_logprobs_of_a_batch(checkpoint: str, kind: str, mode: str) -> None:
    prompts, want = golden_prompts(checkpoint, kind), golden(checkpoint, kind)
    outputs = llm_of(checkpoint, kind).generate(prompts, greedy(replay=mode, logprobs=-1), use_tqdm=False)
    for i, output in enumerate(outputs):
        completion = output.outputs[0]
        assert output.prompt_token_ids == prompts[i]
        assert completion.token_ids == want[f"{i}.{GOLDEN_OF_MODE[mode]}.tokens"].tolist(), f"prompt {i}"
        logprobs = want[f"{i}.{GOLDEN_OF_MODE[mode]}.logits"].double().log_softmax(-1)
        for row, entries in enumerate(completion.logprobs):
            got = torch.tensor([entries[token].logprob for token in range(len(entries))], dtype=torch.float64)
            assert len(got) == logprobs.shape[1]
            assert (got - logprobs[row]).abs().max() <= 2 * TOLERANCE, f"prompt {i}, token {row}"
        chosen = sum(logprobs[row, token].item() for row, token in enumerate(completion.token_ids))
        assert completion.cumulative_logprob == pytest.approx(chosen, abs=1e-2)
        assert (output.finished, completion.finish_reason, completion.stop_reason) == (True, "length", None)


def test_modes_mix_in_one_batch() -> None:
    prompts, want = golden_prompts("v41-tiny"), golden("v41-tiny")
    modes = ["bounded", "off", "exact"]
    picked = [modes[i % 3] for i in range(len(prompts))]
    outputs = llm_of("v41-tiny").generate(prompts, [greedy(replay=mode) for mode in picked], use_tqdm=False)
    for i, (output, mode) in enumerate(zip(outputs, picked, strict=True)):
        assert output.metrics.replay_mode == mode
        assert output.outputs[0].token_ids == want[f"{i}.{GOLDEN_OF_MODE[mode]}.tokens"].tolist()


@pytest.mark.parametrize("mode", GOLDEN_OF_MODE)
def test_prompt_logprobs_are_those_of_every_row(mode: str) -> None:
    prompts, want = golden_prompts("v41-tiny"), golden("v41-tiny")
    # Such a prompt is never trimmed, whatever the mode, so its tokens are those of the full forward.
    outputs = llm_of("v41-tiny").generate(prompts, greedy(prompt_logprobs=-1, replay=mode), use_tqdm=False)
    for i, output in enumerate(outputs):
        assert output.outputs[0].token_ids == want[f"{i}.full.tokens"].tolist()
        assert output.prompt_logprobs[0] is None
        assert len(output.prompt_logprobs) == len(prompts[i])
        logprobs = want[f"{i}.full.prompt_logits"].double().log_softmax(-1)
        for row, entries in enumerate(output.prompt_logprobs[1:]):
            assert next(iter(entries)) == prompts[i][row + 1], "the prompt's own token comes first"
            got = torch.tensor([entries[token].logprob for token in range(len(entries))], dtype=torch.float64)
            assert (got - logprobs[row]).abs().max() <= 2 * TOLERANCE


def test_logprob_entries(llm: LLM) -> None:
    oracle = tokenizers.Tokenizer.from_file(str(DATA / "v41-tiny-engram" / "tokenizer.json"))
    prompt = golden_prompts("v41-tiny-engram")[4]
    completion = llm.generate(prompt, greedy(temperature=2.0, seed=3, logprobs=2), use_tqdm=False)[0].outputs[0]
    below_the_top = 0
    for token, entries in zip(completion.token_ids, completion.logprobs, strict=True):
        assert next(iter(entries)) == token
        ranks = [entry.rank for entry in entries.values()]
        assert sorted(ranks) == ([1, 2] if ranks[0] <= 2 else [1, 2, ranks[0]])
        by_rank = sorted(entries.values(), key=lambda entry: entry.rank)
        assert [entry.logprob for entry in by_rank] == sorted((entry.logprob for entry in by_rank), reverse=True)
        assert all(entry.decoded_token == oracle.decode([token]) for token, entry in entries.items())
        below_the_top += ranks[0] > 2
    assert below_the_top, "the test wants tokens outside the two most likely"
    first = golden("v41-tiny-engram")["4.full.logits"][0].log_softmax(-1)
    top = {token: entry.logprob for token, entry in completion.logprobs[0].items() if entry.rank <= 2}
    assert top == pytest.approx({token: first[token].item() for token in first.topk(2).indices.tolist()}, abs=1e-3)


def test_max_tokens_zero_runs_the_prompt_only(llm: LLM) -> None:
    prompts = golden_prompts("v41-tiny-engram")
    outputs = llm.generate(prompts, greedy(max_tokens=0, prompt_logprobs=0), use_tqdm=False)
    for output, prompt in zip(outputs, prompts, strict=True):
        completion = output.outputs[0]
        assert (completion.token_ids, completion.text, completion.finish_reason) == ([], "", "length")
        assert len(output.prompt_logprobs) == output.metrics.prompt_rows == len(prompt)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_max_tokens_counts_tokens(llm: LLM, count: int) -> None:
    want = golden("v41-tiny-engram")["3.full.tokens"].tolist()
    output = llm.generate(golden_prompts("v41-tiny-engram")[3], greedy(max_tokens=count), use_tqdm=False)[0]
    assert output.outputs[0].token_ids == want[:count]


def test_max_tokens_none_goes_on_to_the_end() -> None:
    llm = LLM(DATA / "v41-tiny", replay="off", max_model_len=40, use_tqdm=False)
    prompt = golden_prompts("v41-tiny")[4]
    assert len(llm.generate(prompt, greedy(max_tokens=None), use_tqdm=False)[0].outputs[0].token_ids) == 40 - len(
        prompt
    )


def test_stop_token_ids(llm: LLM) -> None:
    oracle = tokenizers.Tokenizer.from_file(str(DATA / "v41-tiny-engram" / "tokenizer.json"))
    want = golden("v41-tiny-engram")["3.full.tokens"].tolist()
    stop = want[4]
    assert stop not in want[:4]
    completion = llm.generate(golden_prompts("v41-tiny-engram")[3], greedy(stop_token_ids=[stop, 280]), use_tqdm=False)[
        0
    ].outputs[0]
    assert completion.token_ids == want[:5]
    assert completion.text == oracle.decode(want[:4])
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)


def test_end_of_sequence_ends_unless_ignored() -> None:
    # The continuation of this golden prompt runs over token 1, the checkpoint's eos_token_id.
    llm, prompt = llm_of("v41-tiny-quant", "expected_plain"), golden_prompts("v41-tiny-quant", "expected_plain")[0]
    want = golden("v41-tiny-quant", "expected_plain")["0.full.tokens"].tolist()
    assert 1 in want[:-1]
    completion = llm.generate(prompt, greedy(ignore_eos=False), use_tqdm=False)[0].outputs[0]
    assert completion.token_ids == want[: want.index(1) + 1]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", None)
    assert llm.generate(prompt, greedy(), use_tqdm=False)[0].outputs[0].token_ids == want


def test_stop_strings_end_the_request(llm: LLM) -> None:
    oracle = tokenizers.Tokenizer.from_file(str(DATA / "v41-tiny-engram" / "tokenizer.json"))
    prompt = golden_prompts("v41-tiny-engram")[3]
    want = golden("v41-tiny-engram")["3.full.tokens"].tolist()
    text = oracle.decode(want)
    stop = text[3:5]
    at = text.find(stop)
    ends = next(n for n in range(len(want)) if stop in oracle.decode(want[:n]))
    completion = llm.generate(prompt, greedy(stop=["never in there", stop]), use_tqdm=False)[0].outputs[0]
    assert completion.text == text[:at]
    assert completion.token_ids[:ends] == want[:ends]
    assert len(completion.token_ids) <= ends + 1  # text may be held back until the next token shows that it is whole
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
    assert not llm.engine.has_unfinished()


def test_text_prompts_and_text_outputs(llm: LLM) -> None:
    oracle = tokenizers.Tokenizer.from_file(str(DATA / "v41-tiny-engram" / "tokenizer.json"))
    text = "héllo wörld, 世界"
    output = llm.generate(text, greedy(), use_tqdm=False)[0]
    assert output.prompt == text
    assert output.prompt_token_ids == oracle.encode(text).ids
    assert output.outputs[0].text == oracle.decode(output.outputs[0].token_ids)
    assert llm.get_tokenizer().encode(text) == output.prompt_token_ids


def test_every_form_of_prompts(llm: LLM) -> None:
    ids, text = [75, 17, 3], "Hi there"
    text_ids = llm.get_tokenizer().encode(text)
    want, want_text = (tokens_of(llm.generate(prompt, greedy(), use_tqdm=False))[0] for prompt in (ids, text_ids))
    for one in (ids, tuple(ids), np.array(ids), torch.tensor(ids), {"prompt_token_ids": ids}, [np.array(ids)]):
        assert tokens_of(llm.generate(one, greedy(), use_tqdm=False)) == [want]
    assert tokens_of(llm.generate([ids, ids], greedy(), use_tqdm=False)) == [want, want]
    assert tokens_of(llm.generate(np.array([ids, ids]), greedy(), use_tqdm=False)) == [want, want]
    mixed = [text, {"prompt": text}, {"prompt_token_ids": ids}, ids]
    assert tokens_of(llm.generate(mixed, greedy(), use_tqdm=False)) == [want_text, want_text, want, want]
    assert llm.generate([], greedy(), use_tqdm=False) == []


def test_outputs_come_in_the_order_of_prompts(llm: LLM) -> None:
    lengths = [9, 1, 5, 0, 12, 2]
    params = [greedy(max_tokens=length) for length in lengths]
    outputs = llm.generate([[40 + i] * (i + 1) for i in range(6)], params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == lengths
    assert [output.prompt_token_ids[0] for output in outputs] == [40, 41, 42, 43, 44, 45]
    ids = [int(output.request_id) for output in outputs]
    assert ids == sorted(set(ids))


def test_metrics() -> None:
    prompts = golden_prompts("v41-tiny")
    for mode in ("off", "bounded"):
        for output in llm_of("v41-tiny").generate(prompts, greedy(replay=mode), use_tqdm=False):
            metrics, length = output.metrics, len(output.prompt_token_ids)
            assert (metrics.prompt_rows, metrics.cached_rows, output.num_cached_tokens) == (length, 0, 0)
            assert 0 < metrics.time_to_first_token <= metrics.total_time
            assert metrics.encoder_rows_run == length
            assert metrics.replay_mode == mode
            assert sum(metrics.replay_rows_by_layer) == metrics.replay_rows_run
            # The first replay layer computes every row that the mode keeps: all, or the window of 8.
            assert metrics.replay_rows_by_layer[0] == (length if mode == "off" else min(length, 8))


def test_hidden_states_have_a_row_per_token_run() -> None:
    llm, prompt = llm_of("v41-tiny"), golden_prompts("v41-tiny")[4]
    outputs = llm.generate(
        [prompt] * 2, [greedy(return_hidden_states=True, replay="bounded"), greedy()], use_tqdm=False
    )
    hidden = outputs[0].outputs[0].hidden_states
    assert hidden.shape == (len(prompt) + 11, 64)  # the last token is sampled, not run
    assert np.isfinite(hidden).all() and (hidden != 0).any(axis=1).all()
    assert outputs[1].outputs[0].hidden_states is None


def test_interrupt_leaves_a_usable_engine(llm: LLM) -> None:
    prompt = golden_prompts("v41-tiny-engram")[3]
    free = [group.free_pages for group in llm.stats().cache_groups]
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        while True:  # until the signal comes, however fast the machine
            llm.generate([prompt] * 4, greedy(max_tokens=900), use_tqdm=False)
    timer.join()
    assert not llm.engine.has_unfinished()
    assert [group.free_pages for group in llm.stats().cache_groups] == free
    assert tokens_of(llm.generate(prompt, greedy(), use_tqdm=False)) == [
        golden("v41-tiny-engram")["3.full.tokens"].tolist()
    ]


def test_generate_refuses_an_engine_with_requests_of_others(llm: LLM) -> None:
    prompt = golden_prompts("v41-tiny-engram")[3]
    want = golden("v41-tiny-engram")["3.full.tokens"].tolist()
    steps = llm.stats().steps
    llm.engine.submit(Request(prompt, greedy().to_engine(0)))
    with pytest.raises(ValueError, match=r"wanted an engine without requests of others .*step\(\) .* until"):
        llm.generate(prompt, greedy(), use_tqdm=False)
    assert llm.stats().steps == steps, "nothing has run"
    tokens = []
    while llm.engine.has_unfinished():
        for output in llm.engine.step():
            tokens += output.new_token_ids
    assert tokens == want, "the other request has lost nothing"
    assert tokens_of(llm.generate(prompt, greedy(), use_tqdm=False)) == [want]


def test_threads_may_share_an_llm(llm: LLM) -> None:
    prompts = golden_prompts("v41-tiny-engram")
    got: dict[int, list[int]] = {}

    def run(i: int) -> None:
        got[i] = tokens_of(llm.generate(prompts[i], greedy(), use_tqdm=False))[0]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {i: golden("v41-tiny-engram")[f"{i}.full.tokens"].tolist() for i in range(len(prompts))}


def test_timeout_ends_a_request(llm: LLM) -> None:
    params = [greedy(max_tokens=900, timeout_s=0.05), greedy()]
    prompt = golden_prompts("v41-tiny-engram")[3]
    late, other = llm.generate([prompt] * 2, params, use_tqdm=False)
    assert late.outputs[0].finish_reason == "timeout"
    assert len(late.outputs[0].token_ids) < 900
    assert other.outputs[0].token_ids == golden("v41-tiny-engram")["3.full.tokens"].tolist()


def test_progress_can_be_silenced(capfd: pytest.CaptureFixture[str]) -> None:
    llm = LLM(DATA / "v41-tiny", max_model_len=64, use_tqdm=False)
    llm.generate([[1], [2]], greedy(max_tokens=1), use_tqdm=False)
    assert capfd.readouterr() == ("", "")
    llm.generate([[1], [2]], greedy(max_tokens=1))
    LLM(DATA / "v41-tiny", max_model_len=64)
    out, err = capfd.readouterr()
    assert out == "" and "Processed prompts" in err and "Loading weights" in err


def test_low_level_engine_streams_tokens() -> None:
    config = binding.EngineConfig(replay=binding.ReplayMode.kBounded, max_num_seqs=2, max_model_len=64)
    engine = binding.Engine.load(str(DATA / "v41-tiny"), config)
    assert engine.config().max_num_seqs == 2
    assert engine.model_facts().vocab_size == 288
    prompts = golden_prompts("v41-tiny")
    ids = [engine.submit(Request(prompt, greedy().to_engine(0))) for prompt in prompts]
    streamed: dict[int, list[int]] = {request_id: [] for request_id in ids}
    finished = []
    while engine.has_unfinished():
        assert engine.stats().num_running <= 2
        for output in engine.step():
            streamed[output.id] += output.new_token_ids
            finished += [output.id] if output.finished else []
    assert sorted(finished) == ids
    want = [golden("v41-tiny")[f"{i}.bounded.tokens"].tolist() for i in range(len(prompts))]
    assert [streamed[request_id] for request_id in ids] == want
    assert engine.stats().num_finished == len(prompts)
    assert engine.step() == []
