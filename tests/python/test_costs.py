"""Operation counts against the shapes in a checkpoint and arithmetic done by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from safetensors import safe_open

import reprise
from reprise.costs import layer_costs, parameters, predicted_speedup, prefill_operations


@pytest.mark.parametrize("checkpoint", ["v41-tiny", "v41-tiny-engram"])
def test_parameters_are_the_checkpoints(checkpoint: str, data_dir: Path) -> None:
    config = reprise.load_model_config(str(data_dir / checkpoint))
    counts = [0] * config.num_hidden_layers
    with safe_open(data_dir / checkpoint / "model.safetensors", "pt") as weights:
        for name in weights.keys():
            layer = re.match(r"layers\.(\d+)\.", name)
            shape = weights.get_slice(name).get_shape()
            # Engram's q_weight and k_weight scale elementwise; all else with two dimensions is a product or a table.
            if layer and len(shape) == 2 and not re.search(r"engram\.[qk]_weight", name):
                counts[int(layer[1])] += shape[0] * shape[1]
    assert [parameters(config, layer) for layer in range(config.num_hidden_layers)] == counts


def test_a_plain_layers_operations_by_hand(data_dir: Path) -> None:
    config = reprise.load_model_config(str(data_dir / "v41-tiny"))
    # H 64, q rank 32, N 4, D 32, o rank 32 in 2 groups, S 4, experts of width 32: 2 of 4 and the shared one run.
    received = 64 * 32
    computed = 2 * 24 * 256 + 64 * 32 + 32 * 128 + 128 * 32 + 64 * 64 + 64 * 4 + 3 * 64 * 32 * 3
    costs = layer_costs(config, 0)
    assert (costs.received, costs.computed) == (2 * received, 2 * computed)
    # 10 tokens, W = 8: 1, 2, .. 8, 8, 8 keys; score and value for each of 4 heads of 32 channels.
    keys = sum(range(1, 9)) + 16
    assert prefill_operations(config, "off", 10)[0] == 10 * 2 * (received + computed) + keys * 2 * 2 * 4 * 32


def test_bounded_saves_most_and_exact_needs_its_halo(data_dir: Path) -> None:
    config = reprise.load_model_config(str(data_dir / "v41-tiny"))
    assert predicted_speedup(config, "off", 500) == 1
    assert 1 < predicted_speedup(config, "exact", 500) < predicted_speedup(config, "bounded", 500) < 2.2
    # Five of ten layers stay whole: the last KV source only publishes.
    operations = prefill_operations(config, "bounded", 500)
    plain = prefill_operations(config, "off", 500)
    assert operations[:5] == plain[:5]
    assert all(own * 50 < off for own, off in zip(operations[6:], plain[6:], strict=True))
