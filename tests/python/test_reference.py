"""The plain fp32 reference model against the golden checkpoints, and its rules that no golden value can show."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from reference import deepseek_v41 as reference
from reference.deepseek_v41 import LayerRows, ReferenceModel

DATA = Path(__file__).resolve().parent.parent / "data"
CHECKPOINTS = ["v41-tiny", "v41-tiny-engram", "v41-tiny-quant"]
TOLERANCE = 2e-4  # tests/data: what fp32 arithmetic in another order moves, without a flip of a rounding
INF = float("inf")


@cache
def golden(checkpoint: str, kind: str) -> dict[str, Tensor]:
    return load_file(DATA / checkpoint / f"{kind}.safetensors")


@cache
def model_of(checkpoint: str, cache_rounding: bool) -> ReferenceModel:
    return ReferenceModel(DATA / checkpoint, cache_rounding)


def golden_runs() -> list:
    runs = []
    for checkpoint in CHECKPOINTS:
        for kind in ("expected", "expected_plain"):
            prompts = [int(name.split(".")[0]) for name in golden(checkpoint, kind) if name.endswith(".prompt")]
            for i in sorted(prompts):
                length = len(golden(checkpoint, kind)[f"{i}.prompt"])
                for mode in ("full", "bounded"):
                    runs.append(pytest.param(checkpoint, kind, i, mode, id=f"{checkpoint}-{kind}-{length}-{mode}"))
    return runs


@pytest.mark.parametrize(("checkpoint", "kind", "i", "mode"), golden_runs())
def test_golden_logits_and_tokens(checkpoint: str, kind: str, i: int, mode: str) -> None:
    want = golden(checkpoint, kind)
    prompt, tokens = want[f"{i}.prompt"].tolist(), want[f"{i}.{mode}.tokens"]
    model = model_of(checkpoint, kind == "expected")
    # Every golden token is the argmax of its row, so one forward on prompt and continuation shows all of them.
    logits = model.forward(prompt + tokens[:-1].tolist(), model.layer_rows(len(prompt), mode))
    chosen = logits[len(prompt) - 1 :]
    assert chosen.argmax(-1).tolist() == tokens.tolist()
    torch.testing.assert_close(chosen, want[f"{i}.{mode}.logits"], atol=TOLERANCE, rtol=0)
    if mode == "full" and f"{i}.full.prompt_logits" in want:
        torch.testing.assert_close(logits[: len(prompt)], want[f"{i}.full.prompt_logits"], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("mode", ["full", "bounded"])
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_generate_continues_greedily(checkpoint: str, mode: str) -> None:
    want = golden(checkpoint, "expected")
    tokens, logits = model_of(checkpoint, True).generate(want["2.prompt"].tolist(), 12, mode)
    assert tokens == want[f"2.{mode}.tokens"].tolist()
    torch.testing.assert_close(logits, want[f"2.{mode}.logits"], atol=TOLERANCE, rtol=0)


# Replay --------------------------------------------------------------------------------------------------------------
PLAIN_64 = golden("v41-tiny", "expected_plain")["1.prompt"].tolist()  # W = 8, replay layers 6..9


def test_bounded_and_exact_plans_are_the_tables() -> None:
    model = model_of("v41-tiny", False)
    bounded, exact = model.layer_rows(64, "bounded"), model.layer_rows(64, "exact")
    assert bounded == [LayerRows()] * 6 + [LayerRows(56, 56, 56)] * 4
    assert exact == [LayerRows()] * 6 + [LayerRows(*rows, 0) for rows in [(35, 42), (42, 49), (49, 56), (56, 63)]]
    assert model.layer_rows(8, "bounded") == [LayerRows()] * 10
    assert model.layer_rows(10, "exact")[6:] == [LayerRows(), LayerRows(), LayerRows(0, 2, 0), LayerRows(2, 9, 0)]
    with pytest.raises(ValueError, match="wanted mode full, bounded or exact but got 'of'"):
        model.layer_rows(8, "of")


def test_exact_equals_full_on_every_row_that_is_read() -> None:
    model = model_of("v41-tiny", False)
    full = model.forward(PLAIN_64)
    plan = model.layer_rows(60, "exact")  # the last four tokens stand for generated ones
    plan[5] = LayerRows(0, plan[6].first_received, 0)  # the last KV source runs trimmed too
    exact = model.forward(PLAIN_64, plan)
    torch.testing.assert_close(exact[59:], full[59:], atol=TOLERANCE, rtol=0)
    assert exact[:59].isnan().all()


@pytest.mark.parametrize("layer", [5, 6, 7, 8, 9])
def test_the_exact_halo_is_tight(layer: int) -> None:
    """One computed row fewer in any layer and its NaN reaches the logits."""
    model = model_of("v41-tiny", False)
    plan = model.layer_rows(64, "exact")
    plan[5] = LayerRows(0, plan[6].first_received, 0)
    assert not model.forward(PLAIN_64, plan)[-1].isnan().any()
    plan[layer] = plan[layer]._replace(first_computed=plan[layer].first_computed + 1)
    assert model.forward(PLAIN_64, plan)[63].isnan().any()


def test_rows_that_no_layer_received_cannot_be_read() -> None:
    model = model_of("v41-tiny", False)
    plan = model.layer_rows(64, "exact")
    plan[7] = plan[7]._replace(first_received=plan[7].first_received + 1)
    with pytest.raises(ValueError, match="layer 7: window attention .* rows not received"):
        model.forward(PLAIN_64, plan)


# Selections ----------------------------------------------------------------------------------------------------------
def test_equal_scores_the_lower_position_wins() -> None:
    scores = torch.tensor([[0.0, 1.0, 0.0, 1.0, 0.0, 1.0], [-INF, 0.0, -INF, -INF, 0.0, -INF]])
    assert reference.best(scores, 2).int().tolist() == [[0, 1, 0, 1, 0, 0], [0, 1, 0, 0, 1, 0]]
    assert reference.best(scores, 4).int().tolist() == [[1, 1, 0, 1, 0, 1], [0, 1, 0, 0, 1, 0]]
    assert reference.best(scores, 9).int().tolist() == [[1, 1, 1, 1, 1, 1], [0, 1, 0, 0, 1, 0]]


def test_candidate_blocks() -> None:
    # Blocks of two of seven positions; the row sees five, so block 2 is its latest and block 3 is invisible.
    scores = torch.tensor([[0.0, 3.0, 5.0, 0.0, -9.0, -INF, -INF]])
    visible = torch.tensor([5])

    def kept(num_blocks: int) -> list[int]:
        return reference.candidate_positions(scores, visible, 2, num_blocks)[0].int().tolist()

    assert kept(1) == [0, 0, 0, 0, 1, 1, 0]  # the latest visible block, however low
    assert kept(2) == [0, 0, 1, 1, 1, 1, 0]
    assert kept(9) == [1, 1, 1, 1, 1, 1, 0]
    nothing = reference.candidate_positions(torch.full((1, 7), -INF), torch.tensor([0]), 2, 2)
    assert not nothing.any()


def test_each_row_selects_what_it_sees() -> None:
    """Ratio 2 at layer 2, ratio 1 at layers 5 and 7; index_topk 12; candidates are 6 blocks of 4."""
    trace: dict = {}
    model_of("v41-tiny", True).forward(PLAIN_64, trace=trace)
    row = torch.arange(64)
    selected = trace["selected"]
    for layer, num_visible in [(2, (row + 1) // 2), (5, row + 1), (7, row + 1)]:
        assert selected[layer].sum(1).tolist() == num_visible.clamp(max=12).tolist()
        assert not selected[layer][torch.arange(selected[layer].shape[1]) >= num_visible[:, None]].any()
    candidates = trace["candidates"][5]
    assert not (selected[7] & ~candidates).any()
    assert candidates[row, row].all()  # a row's own position lies in its latest visible block
    blocks = candidates.unflatten(1, (16, 4))
    assert (blocks.all(-1) == blocks.any(-1)).all()
    assert blocks.any(-1).sum(1).tolist() == (row // 4 + 1).clamp(max=6).tolist()


# Number formats ------------------------------------------------------------------------------------------------------
def test_e2m1_ties_go_to_the_even_code() -> None:
    x = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 0.26, 4.9, 7.0])
    want = torch.tensor([0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 0.5, 4.0, 6.0])
    assert torch.equal(reference.round_e2m1(x), want)
    assert torch.equal(reference.round_e2m1(-x), -want)


def test_fp8_groups_have_power_of_two_scales() -> None:
    x = torch.zeros(2, 64)
    x[0, 0], x[0, 1] = 448.0, 17.0  # scale 1; 17 lies between 16 and 18: the even mantissa
    x[0, 32], x[0, 33] = 449.0, 17.0  # scale 2: 449/2 -> 224; 17/2 lies between 8 and 9: 8
    x[1, 0] = 1e-9  # under the least scale, 2^-22, the smallest step is 2^-31
    got = reference.qdq_fp8(x)
    assert got[0, [0, 1, 32, 33]].tolist() == [448.0, 16.0, 448.0, 16.0]
    assert got[1, 0] == 2 * 2.0**-31
    assert (got != 0).sum() == 5


def test_fp4_groups() -> None:
    x = torch.zeros(1, 32)
    x[0, 0], x[0, 1], x[0, 16], x[0, 17] = 6.0, 0.3, 7.0, 0.3
    # mxfp4: one group of 32, amax 7 -> scale 2: 6/2, .3/2, 7/2 (tie, up to 4), .3/2
    assert reference.qdq_mxfp4(x)[0, [0, 1, 16, 17]].tolist() == [6.0, 0.0, 8.0, 0.0]
    # nvfp4: groups of 16, scales 1 and E4M3(7/6) = 1.125: 7/1.125 clamps to 6
    assert reference.qdq_nvfp4(x)[0, [0, 1, 16, 17]].tolist() == [6.0, 0.5, 6.75, 0.5625]


def test_checkpoint_formats() -> None:
    scale = torch.tensor([[126, 127], [128, 129]], dtype=torch.uint8).view(torch.float8_e8m0fnu)  # .5 1; 2 4
    dense = torch.ones(40, 64).to(torch.float8_e4m3fn)
    want = torch.tensor([[0.5, 1.0], [2.0, 4.0]]).repeat_interleave(32, 0)[:40].repeat_interleave(32, 1)
    assert torch.equal(reference.dequantize(dense, scale), want)  # 32x32 blocks, the last one partial
    assert torch.equal(reference.dequantize(dense[:2], scale), want[[0, 39]])  # one scale per row and 32 columns
    packed = torch.full((2, 32), 0x2F, dtype=torch.uint8).view(torch.int8)  # even columns code 15, odd ones code 2
    want = torch.tensor([[0.5, 1.0], [2.0, 4.0]]).repeat_interleave(32, 1) * torch.tensor([-6.0, 1.0]).repeat(32)
    assert torch.equal(reference.dequantize(packed, scale), want)


# Residual streams -----------------------------------------------------------------------------------------------------
def test_mix_at_its_limits() -> None:
    """hc_eps keeps every weight above zero, and an all-zero row stays finite."""
    model = ReferenceModel(DATA / "v41-tiny")
    base = torch.cat(
        [torch.tensor([-200.0, 0, 0, 200]), torch.tensor([-200.0, 0, 0, 200]), 200 * torch.eye(4).flatten()]
    )
    model.weights.loaded["layers.0.hc_attn_base"] = base
    pre, post, comb = model.mix("layers.0.hc_attn", torch.zeros(2, 4, 64))
    torch.testing.assert_close(pre, torch.tensor([[1e-6, 0.5 + 1e-6, 0.5 + 1e-6, 1 + 1e-6]] * 2), rtol=1e-6, atol=0)
    assert post.tolist() == [[0, 1, 1, 2]] * 2
    # Softmax gives the identity; hc_eps is added to each entry and the sums move it by its square only.
    want = torch.full((4, 4), 1e-6).fill_diagonal_(1.0)
    torch.testing.assert_close(comb, want.expand(2, 4, 4), rtol=1e-4, atol=0)
