"""Bounded prefix rebuild against the plain reference model, given the same window floors and the same cached values.

After a hit of H tokens the engine takes what the encoder published for rows below H as another request left it, and
runs rows [H - W, H) again with no window key below H - W. Cache rounding is off: what is left is fp32 arithmetic in
another order.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from reference.deepseek_v41 import LayerRows, ReferenceModel
from reprise import _reprise as binding

DATA = Path(__file__).resolve().parent.parent / "data"
TOLERANCE = 2e-4
WINDOW, NUM_LAYERS, NUM_ENCODER_LAYERS = 8, 10, 6
NUM_TOKENS = 6


class RebuiltModel(ReferenceModel):
    """Rows below `hit` publish what a run of the cached prompt from its start published."""

    def forward_after_hit(self, tokens: list[int], hit: int, layer_rows: list[LayerRows]) -> Tensor:
        self.hit, self.cached = 0, {}
        self.forward(tokens[:hit])
        self.cached = {layer: self.trace["compressed_kv"][layer] for layer in self.trace["compressed_kv"]}
        self.cached_keys = {layer: self.trace["index_keys"][layer] for layer in self.trace["index_keys"]}
        self.hit = hit
        return self.forward(tokens, layer_rows)

    def publish(self, layer: int, x: Tensor, frequencies: Tensor) -> None:
        super().publish(layer, x, frequencies)
        groups = self.hit // self.config.compress_ratios[layer]
        if groups:
            self.compressed_kv = torch.cat([self.cached[layer], self.compressed_kv[groups:]])
            self.index_keys = torch.cat([self.cached_keys[layer], self.index_keys[groups:]])


@cache
def model_of(checkpoint: str) -> RebuiltModel:
    return RebuiltModel(DATA / checkpoint, cache_rounding=False)


def bounded_rows(length: int, hit: int) -> list[LayerRows]:
    """Every layer runs rows >= H - W; the replay layers the prompt's last W, if those lie higher."""
    floor, first = hit - WINDOW, max(length - WINDOW, hit - WINDOW)
    rows = [LayerRows(floor, floor, floor)] * NUM_ENCODER_LAYERS
    return rows + [LayerRows(first, first, first)] * (NUM_LAYERS - NUM_ENCODER_LAYERS)


def make_prompt(length: int, seed: int) -> list[int]:
    return torch.randint(3, 288, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def engine_of(checkpoint: str, page_size: int) -> binding.Engine:
    config = binding.EngineConfig(
        kv_cache_dtype=binding.CacheDtype.kModel,
        replay=binding.ReplayMode.kBounded,
        prefix_rebuild=binding.PrefixRebuild.kBounded,
        enable_prefix_caching=True,
        page_size=page_size,
        max_num_seqs=2,
        max_num_batched_tokens=20,
        max_model_len=4096,  # pages for all that the tests leave behind: nothing is evicted
        num_threads=1,
        poison_cache=True,
    )
    if checkpoint == "v41-tiny-engram":
        config.engram_vocabulary = model_of(checkpoint).compressed_ids.tolist()
    return binding.Engine.load(str(DATA / checkpoint), config)


def run(engine: binding.Engine, prompt: list[int]) -> tuple[list[int], Tensor, binding.RequestMetrics]:
    """The greedy continuation, its log-softmax [NUM_TOKENS, vocab] and the metrics."""
    sampling = binding.SamplingParams(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True, logprobs=-1)
    engine.submit(binding.Request(prompt, sampling))
    tokens, rows, metrics = [], [], None
    while engine.has_unfinished():
        for output in engine.step():
            tokens += output.new_token_ids
            for entries in output.logprobs:
                row = torch.empty(len(entries))
                row[[entry.token_id for entry in entries]] = torch.tensor([entry.logprob for entry in entries])
                rows.append(row)
            metrics = output.metrics
    return tokens, torch.stack(rows), metrics


@pytest.mark.parametrize(
    ("checkpoint", "page_size"),
    [("v41-tiny", 2), ("v41-tiny", 4), ("v41-tiny", 8), ("v41-tiny", 16), ("v41-tiny-engram", 4)],
)
def test_hits_around_the_window_and_the_page(checkpoint: str, page_size: int) -> None:
    model, engine = model_of(checkpoint), engine_of(checkpoint, page_size)
    cached = make_prompt(48, 1)
    run(engine, cached)
    for shared in (1, 8, 9, 10, 15, 16, 17, 18, 23, 24, 33, 48):
        for suffix in (1, 8, 30):
            # Every prompt leaves the cached one at a token of its own, so none finds what another left.
            tail = make_prompt(suffix, 1000 * shared + suffix)
            if shared < len(cached) and tail[0] == cached[shared]:
                tail[0] += 1
            prompt = cached[:shared] + tail
            hit = shared // page_size * page_size
            if hit == len(prompt):
                hit -= page_size
            if hit <= WINDOW:
                hit = 0
            tokens, logprobs, metrics = run(engine, prompt)
            assert metrics.cached_rows == hit, (shared, suffix)
            assert metrics.encoder_rows_run == len(prompt) - max(hit - WINDOW, 0)
            whole = prompt + tokens[:-1]
            if hit:
                logits = model.forward_after_hit(whole, hit, bounded_rows(len(prompt), hit))
            else:
                model.hit = 0
                logits = model.forward(whole, model.layer_rows(len(prompt), "bounded"))
            want = logits[len(prompt) - 1 :].double().log_softmax(-1)
            # Twice the tolerance: the shift of the log-softmax is bounded by the same.
            assert (logprobs - want).abs().max() <= 2 * TOLERANCE, (shared, suffix)


def test_bounded_rebuild_is_an_approximation() -> None:
    """It moves the logits by far more than the tolerance; were that not so, these tests would show nothing."""
    model, prompt = model_of("v41-tiny"), make_prompt(60, 2)
    model.hit = 0
    cold = model.forward(prompt, model.layer_rows(60, "bounded"))[-1]
    rebuilt = model.forward_after_hit(prompt, 40, bounded_rows(60, 40))[-1]
    assert (cold - rebuilt).abs().max() > 10 * TOLERANCE
