"""Checkpoints of random weights in the released layout, for benchmarks and tests.

    write_checkpoint("100m", "/tmp/100m")          # config.json and model.safetensors

The weights are scaled so that activations keep their size from layer to layer and logits vary; what such a model
generates means nothing.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

_COMMON: dict[str, Any] = {
    "model_type": "deepseek_v41_text",
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "n_shared_experts": 1,
    "num_key_value_heads": 1,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-20,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "routed_scaling_factor": 1.5,
    "compress_rope_theta": 160000.0,
    "rope_theta": 10000.0,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "engram_layer_ids": [],
    "bos_token_id": 0,
    "eos_token_id": 1,
}

# text_config by preset. In all of them half of the layers, or nearly, come after the last KV source: the replay layers.
PRESETS: dict[str, dict[str, Any]] = {
    # The shape of the golden checkpoints: 6 encoder layers, 4 replay layers.
    "tiny": _COMMON
    | {
        "vocab_size": 288,
        "hidden_size": 64,
        "num_hidden_layers": 10,
        "num_attention_heads": 4,
        "head_dim": 32,
        "qk_rope_head_dim": 16,
        "q_lora_rank": 32,
        "o_groups": 2,
        "o_lora_rank": 32,
        "sliding_window": 8,
        "compress_ratios": [0, 0, 2, 2, 2, 1, 1, 1, 1, 1],
        "kv_source_layer_ids": [2, 5],
        "index_source_layer_ids": [2, 5, 7],
        "index_n_heads": 8,
        "index_head_dim": 32,
        "index_topk": 12,
        "candidate_source_layer_id": 5,
        "candidate_topk_blocks": 6,
        "candidate_block_size": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "swiglu_limit": 1.5,
        "max_position_embeddings": 4096,
    },
    # 6 encoder layers, 6 replay layers.
    "100m": _COMMON
    | {
        "vocab_size": 32000,
        "hidden_size": 512,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "head_dim": 64,
        "qk_rope_head_dim": 32,
        "q_lora_rank": 256,
        "o_groups": 2,
        "o_lora_rank": 128,
        "sliding_window": 128,
        "compress_ratios": [0, 0, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1],
        "kv_source_layer_ids": [2, 5],
        "index_source_layer_ids": [2, 5, 8],
        "index_n_heads": 8,
        "index_head_dim": 64,
        "index_topk": 128,
        "candidate_source_layer_id": 5,
        "candidate_topk_blocks": 64,
        "candidate_block_size": 8,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 384,
        "swiglu_limit": 10.0,
        "max_position_embeddings": 65536,
    },
    # 12 encoder layers, 12 replay layers.
    "small": _COMMON
    | {
        "vocab_size": 32000,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "head_dim": 128,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 512,
        "o_groups": 4,
        "o_lora_rank": 256,
        "sliding_window": 128,
        "compress_ratios": [0, 0] + [2] * 9 + [1] * 13,
        "kv_source_layer_ids": [2, 6, 11],
        "index_source_layer_ids": [2, 6, 11, 15, 19],
        "index_n_heads": 16,
        "index_head_dim": 64,
        "index_topk": 256,
        "candidate_source_layer_id": 11,
        "candidate_topk_blocks": 128,
        "candidate_block_size": 8,
        "n_routed_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 384,
        "swiglu_limit": 10.0,
        "max_position_embeddings": 65536,
    },
}


class _Weight(NamedTuple):
    """A tensor to draw: normal with `mean` and `std`."""

    name: str
    shape: tuple[int, ...]
    std: float
    mean: float = 0.0
    dtype: torch.dtype = torch.bfloat16

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def _linear(name: str, out: int, in_: int, dtype: torch.dtype = torch.bfloat16) -> _Weight:
    return _Weight(f"{name}.weight", (out, in_), 1.2 / math.sqrt(in_), dtype=dtype)


def _norm(name: str, size: int) -> _Weight:
    return _Weight(f"{name}.weight", (size,), 0.1, mean=1.0)


def _mix(name: str, streams: int, hidden: int) -> Iterator[_Weight]:
    outputs = streams * (streams + 2)
    yield _Weight(f"{name}_base", (outputs,), 0.5, dtype=torch.float32)
    yield _Weight(f"{name}_fn", (outputs, streams * hidden), 0.5 / math.sqrt(streams * hidden), dtype=torch.float32)
    yield _Weight(f"{name}_scale", (3,), 0.1, mean=1.0, dtype=torch.float32)


def _attention(c: dict[str, Any], layer: int) -> Iterator[_Weight]:
    p = f"layers.{layer}.attn"
    hidden, heads, dim, groups = c["hidden_size"], c["num_attention_heads"], c["head_dim"], c["o_groups"]
    yield _Weight(f"{p}.attn_sink", (heads,), 0.7, dtype=torch.float32)
    yield _linear(f"{p}.wq_a", c["q_lora_rank"], hidden)
    yield _norm(f"{p}.q_norm", c["q_lora_rank"])
    yield _linear(f"{p}.wq_b", heads * dim, c["q_lora_rank"])
    yield _linear(f"{p}.wkv", dim, hidden)
    yield _norm(f"{p}.kv_norm", dim)
    yield _linear(f"{p}.wo_a", groups * c["o_lora_rank"], heads // groups * dim)
    yield _linear(f"{p}.wo_b", hidden, groups * c["o_lora_rank"])
    if layer in c["kv_source_layer_ids"]:
        yield _linear(f"{p}.compressor.wkv", dim, hidden, torch.float32)
        if c["compress_ratios"][layer] > 1:
            yield _linear(f"{p}.compressor.wgate", dim, hidden, torch.float32)
        yield _norm(f"{p}.compressor.norm", dim)
        yield _linear(f"{p}.indexer.wk", c["index_head_dim"], dim)
        yield _norm(f"{p}.indexer.k_norm", c["index_head_dim"])
    if layer in c["index_source_layer_ids"]:
        yield _linear(f"{p}.indexer.wq_b", c["index_n_heads"] * c["index_head_dim"], c["q_lora_rank"])
        yield _linear(f"{p}.indexer.weights_proj", c["index_n_heads"], hidden)


def _expert(name: str, c: dict[str, Any]) -> Iterator[_Weight]:
    yield _linear(f"{name}.w1", c["moe_intermediate_size"], c["hidden_size"])
    yield _linear(f"{name}.w2", c["hidden_size"], c["moe_intermediate_size"])
    yield _linear(f"{name}.w3", c["moe_intermediate_size"], c["hidden_size"])


def _weights(c: dict[str, Any]) -> Iterator[_Weight]:
    hidden = c["hidden_size"]
    yield _Weight("embed.weight", (c["vocab_size"], hidden), 1.0)
    for layer in range(c["num_hidden_layers"]):
        p = f"layers.{layer}"
        yield from _mix(f"{p}.hc_attn", c["hc_mult"], hidden)
        yield _norm(f"{p}.attn_norm", hidden)
        yield from _attention(c, layer)
        yield from _mix(f"{p}.hc_ffn", c["hc_mult"], hidden)
        yield _norm(f"{p}.ffn_norm", hidden)
        yield _linear(f"{p}.ffn.gate", c["n_routed_experts"], hidden)
        for bias in ("bias", "bias_vl"):
            yield _Weight(f"{p}.ffn.gate.{bias}", (c["n_routed_experts"],), 0.1, dtype=torch.float32)
        yield from _expert(f"{p}.ffn.shared_experts", c)
        for expert in range(c["n_routed_experts"]):
            yield from _expert(f"{p}.ffn.experts.{expert}", c)
    yield _norm("norm", hidden)
    yield _linear("head", c["vocab_size"], hidden)


def _text_config(preset: str) -> dict[str, Any]:
    if preset not in PRESETS:
        raise ValueError(f"wanted a preset among {', '.join(PRESETS)} but got {preset!r}")
    return PRESETS[preset]


def num_parameters(preset: str) -> int:
    """Weights of a preset's checkpoint. ValueError for an unknown preset."""
    return sum(math.prod(weight.shape) for weight in _weights(_text_config(preset)))


def write_checkpoint(preset: str, path: str | Path, seed: int = 0, max_shard_bytes: int = 4 << 30) -> Path:
    """Writes config.json and the safetensors file (or shards and their index) of a preset into folder `path`.

    Equal seeds give equal files. One tensor is held at a time, whatever the size of the checkpoint. A file takes its
    name only once it is whole, and config.json comes last. Returns the folder; ValueError for an unknown preset.
    """
    config = _text_config(preset)
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    for stale in ("config.json", "model.safetensors.index.json", *(p.name for p in folder.glob("model*.safetensors"))):
        (folder / stale).unlink(missing_ok=True)

    shards: list[list[_Weight]] = [[]]
    shard_bytes = 0
    for weight in _weights(config):
        if shards[-1] and shard_bytes + weight.num_bytes > max_shard_bytes:
            shards.append([])
            shard_bytes = 0
        shards[-1].append(weight)
        shard_bytes += weight.num_bytes
    names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    if len(shards) == 1:
        names = ["model.safetensors"]
    generator = torch.Generator().manual_seed(seed)
    for name, shard in zip(names, shards, strict=True):
        _write_shard(folder / name, shard, generator)
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": sum(w.num_bytes for shard in shards for w in shard)},
            "weight_map": {w.name: name for name, shard in zip(names, shards, strict=True) for w in shard},
        }
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    whole = {"architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "dtype": config["dtype"]}
    (folder / "config.json").write_text(json.dumps(whole | {"text_config": config}, indent=1))
    return folder


def _write_shard(path: Path, weights: list[_Weight], generator: torch.Generator) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for weight in weights:
        dtype = {torch.bfloat16: "BF16", torch.float32: "F32"}[weight.dtype]
        end = offset + weight.num_bytes
        header[weight.name] = {"dtype": dtype, "shape": weight.shape, "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # data begins at a multiple of 8 bytes
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for weight in weights:
            values = torch.empty(weight.shape).normal_(weight.mean, weight.std, generator=generator)
            file.write(values.to(weight.dtype).view(torch.uint8).numpy().data)
    os.replace(partial, path)
