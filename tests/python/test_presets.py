"""Random checkpoints: the released layout, the promised sizes, values that a model can run on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from reference.deepseek_v41 import ReferenceModel
from reprise import LLM, SamplingParams
from reprise.presets import PRESETS, num_parameters, write_checkpoint


def test_tiny_has_the_layout_of_the_golden_checkpoint(tmp_path: Path, data_dir: Path) -> None:
    folder = write_checkpoint("tiny", tmp_path / "new" / "folder")
    ours = load_file(folder / "model.safetensors")
    golden = load_file(data_dir / "v41-tiny" / "model.safetensors")
    assert {name: tensor.shape for name, tensor in ours.items()} == {n: t.shape for n, t in golden.items()}
    assert {t.dtype for t in ours.values()} == {torch.bfloat16, torch.float32}
    config = json.loads((folder / "config.json").read_text())["text_config"]
    golden_config = json.loads((data_dir / "v41-tiny" / "config.json").read_text())["text_config"]
    differing = {field for field in config if config[field] != golden_config[field]}
    assert differing == {"dtype"}


def test_the_seed_alone_decides_the_values(tmp_path: Path) -> None:
    files = [
        write_checkpoint("tiny", tmp_path / str(i), seed) / "model.safetensors" for i, seed in enumerate([3, 3, 4])
    ]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[0].read_bytes() != files[2].read_bytes()


def test_shards_hold_what_the_single_file_holds(tmp_path: Path) -> None:
    single = load_file(write_checkpoint("tiny", tmp_path / "single") / "model.safetensors")
    folder = write_checkpoint("tiny", tmp_path / "shards", max_shard_bytes=400_000)
    weight_map = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    total = sum(tensor.nbytes for tensor in single.values())
    assert total / 400_000 <= len(set(weight_map.values())) <= total / 400_000 + 2
    assert weight_map.keys() == single.keys()
    for name, shard in weight_map.items():
        with safe_open(folder / shard, framework="pt") as file:
            assert torch.equal(file.get_tensor(name), single[name]), name
    assert all((folder / shard).stat().st_size <= 450_000 for shard in weight_map.values())


def test_a_folder_can_be_written_again(tmp_path: Path) -> None:
    write_checkpoint("tiny", tmp_path, max_shard_bytes=400_000)
    write_checkpoint("tiny", tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(("preset", "least", "most"), [("100m", 95e6, 110e6), ("small", 550e6, 650e6)])
def test_bench_presets_have_the_promised_size(preset: str, least: float, most: float) -> None:
    assert least <= num_parameters(preset) <= most
    config = PRESETS[preset]
    encoder = config["kv_source_layer_ids"][-1] + 1
    assert config["num_hidden_layers"] == 2 * encoder
    assert {1, 2} <= set(config["compress_ratios"])
    assert config["candidate_source_layer_id"] == config["kv_source_layer_ids"][-1]
    assert config["index_source_layer_ids"][-1] >= encoder  # a re-index layer among the replay layers


def test_an_unknown_preset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="wanted a preset among tiny, 100m, small but got 'huge'"):
        write_checkpoint("huge", tmp_path)
    with pytest.raises(ValueError, match="'huge'"):
        num_parameters("huge")


def test_the_reference_runs_on_it(tmp_path: Path) -> None:
    """Activations keep their size through the layers, and logits tell tokens apart."""
    trace: dict[str, dict[int, torch.Tensor]] = {}
    prompt = torch.randint(0, 288, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    logits = ReferenceModel(write_checkpoint("tiny", tmp_path)).forward(prompt, trace=trace)
    assert logits.isfinite().all()
    assert 0.5 < logits.std() < 5
    assert logits.argmax(-1).unique().numel() > 10
    sizes = [hidden.square().mean().sqrt().item() for hidden in trace["hidden"].values()]
    assert 0.1 < min(sizes) and max(sizes) < 100


def test_the_engine_generates_from_it(tmp_path: Path) -> None:
    """fp32 arithmetic, so that greedy tokens agree with the reference's."""
    folder = write_checkpoint("tiny", tmp_path, max_shard_bytes=400_000)
    prompt = [5, 17, 200, 3, 90, 41, 7, 7, 250, 1, 33, 12]
    want, _ = ReferenceModel(folder, cache_rounding=False).generate(prompt, 6)
    llm = LLM(folder, dtype="float32", kv_cache_dtype="model", replay="off", max_model_len=64, use_tqdm=False)
    params = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
    assert llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids == want
