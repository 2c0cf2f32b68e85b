"""What a forward costs in floating-point operations, by layer and row: what measurements are held against."""

from __future__ import annotations

from dataclasses import dataclass

from reprise import _reprise
from reprise.sampling_params import replay_mode


@dataclass(frozen=True)
class LayerCosts:
    """Operations of one layer, a multiply-add counting two.

    A row that the layer receives costs `received`; a row that it computes costs `computed` besides, and
    `per_window_key`, `per_selected_key` and `per_visible_key` for each key that it reads, selects or scores.
    """

    received: int
    computed: int
    per_window_key: int
    per_selected_key: int
    per_visible_key: int


def layer_costs(config: _reprise.ModelConfig, layer: int) -> LayerCosts:
    """The products of a layer, from the shapes of its weights; norms, mixes of streams and softmaxes are left out."""
    hidden, heads, dim = config.hidden_size, config.num_attention_heads, config.head_dim
    streams = config.hc_mult
    received = hidden * dim
    if layer in config.kv_source_layer_ids:
        received += hidden * dim * (2 if config.compress_ratios[layer] > 1 else 1) + dim * config.index_head_dim
    if layer in config.engram_layer_ids:
        tables = (config.engram_max_ngram_size - 1) * config.engram_n_heads
        received += tables * config.engram_head_dim * (streams + 1) * hidden
    computed = 2 * streams * (streams + 2) * streams * hidden  # the two stream mixes
    computed += hidden * config.q_lora_rank + config.q_lora_rank * heads * dim
    computed += heads * dim * config.o_lora_rank + config.o_groups * config.o_lora_rank * hidden
    computed += hidden * config.n_routed_experts
    computed += 3 * hidden * config.moe_intermediate_size * (config.num_experts_per_tok + 1)
    per_key = 2 * heads * dim  # score and value
    reads_compressed = config.kv_source_of(layer) >= 0
    per_visible_key = 0
    if layer in config.index_source_layer_ids:
        computed += config.q_lora_rank * config.index_n_heads * config.index_head_dim + hidden * config.index_n_heads
        per_visible_key = config.index_n_heads * config.index_head_dim
    return LayerCosts(
        received=2 * received,
        computed=2 * computed,
        per_window_key=2 * per_key,
        per_selected_key=2 * per_key if reads_compressed else 0,
        per_visible_key=2 * per_visible_key,
    )


def parameters(config: _reprise.ModelConfig, layer: int) -> int:
    """Weights of a layer's products."""
    costs = layer_costs(config, layer)
    idle_experts = config.n_routed_experts - config.num_experts_per_tok
    return (
        (costs.received + costs.computed) // 2 + 3 * config.hidden_size * config.moe_intermediate_size * idle_experts
    ) + _table_parameters(config, layer)


def _table_parameters(config: _reprise.ModelConfig, layer: int) -> int:
    if layer not in config.engram_layer_ids:
        return 0
    return _reprise.engram_table_rows(config, layer) * config.engram_head_dim


def row_operations(config: _reprise.ModelConfig, layer: int, position: int, window_floor: int = 0) -> int:
    """What a computed row costs at a position, its receiving left out."""
    return _row_operations(config, layer, layer_costs(config, layer), position, window_floor)


def _row_operations(
    config: _reprise.ModelConfig, layer: int, costs: LayerCosts, position: int, window_floor: int
) -> int:
    first_key = max(position - config.sliding_window + 1, window_floor, 0)
    total = costs.computed + costs.per_window_key * (position + 1 - first_key)
    ratio = config.compress_ratios[layer]
    if ratio > 0:
        visible = (position + 1) // ratio
        selected = min(visible, config.index_topk)
        total += costs.per_selected_key * selected
        scored = visible
        if 0 <= config.candidate_source_layer_id < layer:
            scored = min(visible, config.candidate_topk_blocks * config.candidate_block_size)
        if scored > config.index_topk:  # else all are selected unscored
            total += costs.per_visible_key * scored
    return total


def prefill_operations(config: _reprise.ModelConfig, mode: str, prompt_len: int) -> list[int]:
    """Operations of each layer for a whole prompt under a replay mode (chunks of window size for "step")."""
    if mode == "step":
        raise ValueError("wanted a replay mode that is planned from the prompt's end but got 'step'")
    plan = _reprise.make_row_plan(replay_mode(mode), prompt_len, config)
    operations = []
    for layer, rows in enumerate(plan.layers):
        costs = layer_costs(config, layer)
        received = costs.received * (prompt_len - rows.first_received)
        computed = sum(
            _row_operations(config, layer, costs, position, rows.window_floor)
            for position in range(rows.first_computed, prompt_len)
        )
        operations.append(received + computed)
    return operations


def predicted_speedup(config: _reprise.ModelConfig, mode: str, prompt_len: int) -> float:
    """Operations of the plain prefill over those of a mode."""
    head = 2 * config.vocab_size * config.hidden_size  # the last row's
    plain = sum(prefill_operations(config, "off", prompt_len)) + head
    return plain / (sum(prefill_operations(config, mode, prompt_len)) + head)
