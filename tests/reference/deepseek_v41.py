"""The DeepSeek-V4.1 text backbone in plain fp32 PyTorch: no cache, no batching, one request. The specification in code.

    model = ReferenceModel("tests/data/v41-tiny")
    logits = model.forward(token_ids)                       # [n, vocab], one row per token
    tokens, logits = model.generate(token_ids, 12, "bounded")

Shapes: n rows (tokens), S residual streams, H hidden size, N heads, D head dim, R rotary channels,
G compressed positions.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import tokenizers
import torch
import torch.nn.functional as F
from safetensors import safe_open
from tokenizers import normalizers
from torch import Tensor

# ---------------------------------------------------------------------------------------------------------------------
# Number formats. Every qdq_* quantizes and dequantizes groups of consecutive channels, in fp32.
# ---------------------------------------------------------------------------------------------------------------------
E2M1_LEVELS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def power_of_two_at_least(x: Tensor) -> Tensor:
    """2^ceil(log2 x) of positive normal fp32 numbers, from their exponent bits."""
    bits = x.view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).int()
    return (exponent << 23).view(torch.float32)


def round_e4m3(x: Tensor) -> Tensor:
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).float()


def round_e2m1(x: Tensor) -> Tensor:
    """The nearest E2M1 level; a tie goes to the even code, so three of the seven midpoints round up."""
    a = x.abs().clamp(max=6)
    code = sum((a > midpoint).long() for midpoint in (0.25, 1.25, 2.5, 5.0))
    code = code + sum((a >= midpoint).long() for midpoint in (0.75, 1.75, 3.5))
    return torch.copysign(E2M1_LEVELS[code], x)


def qdq(x: Tensor, group: int, scale_of, round_value) -> Tensor:
    groups = x.unflatten(-1, (-1, group))
    scale = scale_of(groups.abs().amax(-1, keepdim=True))
    return (round_value(groups / scale) * scale).flatten(-2)


def qdq_fp8(x: Tensor) -> Tensor:
    return qdq(x, 32, lambda amax: power_of_two_at_least(amax.clamp(min=1e-4) * (1 / 448)), round_e4m3)


def qdq_mxfp4(x: Tensor) -> Tensor:
    return qdq(x, 32, lambda amax: power_of_two_at_least(amax.clamp(min=6 * 2.0**-126) * (1 / 6)), round_e2m1)


def qdq_nvfp4(x: Tensor) -> Tensor:
    return qdq(x, 16, lambda amax: round_e4m3(amax.clamp(min=6 * 2.0**-9) / 6), round_e2m1)


def dequantize(weight: Tensor, scale: Tensor | None) -> Tensor:
    """A checkpoint tensor as fp32. `scale` is E8M0, per 32x32 block or per row and 32 columns; I8 packs two E2M1."""
    if scale is None:
        return weight.float()
    if weight.dtype == torch.int8:  # even column in the low nibble; bit 3 of a code is its sign
        codes = torch.stack([weight & 15, (weight >> 4) & 15], -1).flatten(-2).long()
        weight = torch.cat([E2M1_LEVELS, -E2M1_LEVELS])[codes]
    if scale.shape[0] != weight.shape[0]:
        scale = scale.float().repeat_interleave(32, 0)[: weight.shape[0]]
    return weight.float() * scale.float().repeat_interleave(32, 1)[:, : weight.shape[1]]


class Checkpoint:
    """The tensors of a folder's safetensors files by name, dequantized to fp32 when first asked for."""

    def __init__(self, folder: Path) -> None:
        self.files: dict[str, Any] = {}
        index = folder / "model.safetensors.index.json"
        shards = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else None
        for shard in shards or ["model.safetensors"]:
            file = safe_open(folder / shard, framework="pt")
            self.files.update(dict.fromkeys(file.keys(), file))
        self.loaded: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.loaded:
            scale = name.removesuffix(".weight") + ".scale"
            scale = self.files[scale].get_tensor(scale) if scale in self.files else None
            self.loaded[name] = dequantize(self.files[name].get_tensor(name), scale)
        return self.loaded[name]


# ---------------------------------------------------------------------------------------------------------------------
# Rotary embedding
# ---------------------------------------------------------------------------------------------------------------------
def rope_frequencies(c: SimpleNamespace, ratio: int) -> Tensor:
    """[R/2] radians per position. Layers with compressed KV use their own base, interpolated as by YaRN."""
    dim = c.qk_rope_head_dim
    theta = c.compress_rope_theta if ratio else c.rope_theta
    j = torch.arange(dim // 2, dtype=torch.float32)
    f = 1.0 / theta ** (2 * j / dim)
    if ratio == 0:
        return f
    yarn = c.rope_parameters

    def dim_of(rotations: float) -> float:  # the pair that turns this often over the original length
        return (
            dim * math.log(yarn["original_max_position_embeddings"] / (rotations * 2 * math.pi)) / (2 * math.log(theta))
        )

    low = max(math.floor(dim_of(yarn["beta_fast"])), 0)
    high = min(math.ceil(dim_of(yarn["beta_slow"])), dim - 1)
    ramp = ((j - low) / max(high - low, 1e-3)).clamp(0, 1)
    return f / yarn["factor"] * ramp + f * (1 - ramp)


def rope(x: Tensor, positions: Tensor, frequencies: Tensor, inverse: bool = False) -> Tensor:
    """Rotates the adjacent pairs of the last R channels of x [n, D] or [n, heads, D]."""
    angle = positions.float()[:, None] * frequencies
    cos, sin = angle.cos(), angle.sin() * (-1 if inverse else 1)
    if x.dim() == 3:
        cos, sin = cos[:, None], sin[:, None]
    kept, turned = x.split([x.shape[-1] - 2 * len(frequencies), 2 * len(frequencies)], -1)
    a, b = turned[..., 0::2], turned[..., 1::2]
    return torch.cat([kept, torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)], -1)


# ---------------------------------------------------------------------------------------------------------------------
# Selections
# ---------------------------------------------------------------------------------------------------------------------
def best(scores: Tensor, k: int) -> Tensor:
    """Mask of the k best entries per row; equal scores: the lower position wins; -inf is never chosen."""
    order = torch.sort(scores, dim=-1, descending=True, stable=True).indices[:, :k]
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, order, True) & (scores > -torch.inf)


def candidate_positions(scores: Tensor, num_visible: Tensor, block_size: int, num_blocks: int) -> Tensor:
    """Mask [n, G] of the positions in the best blocks; the latest visible block is always among them."""
    padding = -scores.shape[1] % block_size
    blocks = F.pad(scores, (0, padding), value=-torch.inf).unflatten(1, (-1, block_size)).amax(-1)
    latest = (num_visible - 1) // block_size  # -1 where nothing is visible: matches no block
    blocks = blocks.masked_fill(torch.arange(blocks.shape[1]) == latest[:, None], torch.inf)
    return best(blocks, num_blocks).repeat_interleave(block_size, 1)[:, : scores.shape[1]]


# ---------------------------------------------------------------------------------------------------------------------
# Engram: hashed n-grams of a compressed vocabulary
# ---------------------------------------------------------------------------------------------------------------------
def compressed_vocabulary(tokenizer: tokenizers.Tokenizer, vocab_size: int) -> np.ndarray:
    """[vocab_size] int64: token id -> compressed id. Tokens that differ in case, accents or white space share one."""
    fold = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )
    ids_by_key: dict[str, int] = {}
    compressed = np.empty(vocab_size, dtype=np.int64)
    for token in range(vocab_size):
        text = tokenizer.decode([token], skip_special_tokens=False)
        if "\ufffd" in text:  # part of a character: only the token itself tells it apart
            key = tokenizer.id_to_token(token)
        else:
            folded = re.sub(r"[ \t\r\n]+", " ", fold.normalize_str(text))
            key = (folded if folded == " " else normalizers.Strip().normalize_str(folded)) or text
        compressed[token] = ids_by_key.setdefault(key, len(ids_by_key))
    return compressed


def is_prime(x: int) -> bool:
    return x >= 2 and all(x % d for d in range(2, math.isqrt(x) + 1))


class EngramTable(NamedTuple):
    multipliers: np.ndarray  # [max_ngram_size] int64, one per shift
    moduli: list[list[int]]  # [n-gram size - 2][head], a prime each


def engram_tables(c: SimpleNamespace) -> dict[int, EngramTable]:
    tables = {}
    used: set[int] = set()
    for layer in c.engram_layer_ids:
        moduli = []
        for _ in range(2, c.engram_max_ngram_size + 1):
            candidate = c.engram_vocab_size - 1
            primes = []
            while len(primes) < c.engram_n_heads:
                candidate += 1
                if candidate not in used and is_prime(candidate):
                    primes.append(candidate)
                    used.add(candidate)
            moduli.append(primes)
        bound = max(1, (np.iinfo(np.int64).max // c.engram_compressed_vocab_size) // 2)
        draw = np.random.default_rng(10007 * layer).integers(0, bound, size=c.engram_max_ngram_size, dtype=np.int64)
        tables[layer] = EngramTable(draw * 2 + 1, moduli)
    return tables


def engram_rows(table: EngramTable, compressed: np.ndarray, pad: int) -> np.ndarray:
    """Rows of the embedding table per token, [n, sizes * heads]; positions before the start count as `pad`."""
    n = len(compressed)
    shifted = [np.concatenate([np.full(k, pad), compressed])[:n] for k in range(len(table.multipliers))]
    columns = []
    offset = 0
    with np.errstate(over="ignore"):  # the products wrap
        for size, primes in enumerate(table.moduli, start=2):
            mixed = np.zeros(n, dtype=np.int64)
            for k in range(size):
                mixed ^= shifted[k] * table.multipliers[k]
            for prime in primes:
                columns.append(mixed % prime + offset)
                offset += prime
    return np.stack(columns, 1)


# ---------------------------------------------------------------------------------------------------------------------
# The decoder
# ---------------------------------------------------------------------------------------------------------------------
class LayerRows(NamedTuple):
    """Which rows of the request a layer runs on; generated rows follow the prompt's and are always among them."""

    first_received: int = 0  # window KV exists from here
    first_computed: int = 0  # attention, MoE and output from here
    window_floor: int = 0  # window attention reads nothing below


class ReferenceModel:
    """A checkpoint folder. `cache_rounding` off = kv_cache_dtype="model": no qdq_* is applied to what is cached."""

    def __init__(self, folder: str | Path, cache_rounding: bool = True) -> None:
        folder = Path(folder)
        config = json.loads((folder / "config.json").read_text())
        self.config = c = SimpleNamespace(**config.get("text_config", config))
        self.weights = Checkpoint(folder)
        self.cache_rounding = cache_rounding
        self.num_encoder_layers = max(c.kv_source_layer_ids, default=-1) + 1
        self.engram_tables = engram_tables(c) if c.engram_layer_ids else {}
        if self.engram_tables:
            tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
            self.compressed_ids = compressed_vocabulary(tokenizer, c.vocab_size)
            assert self.compressed_ids.max() + 1 == c.engram_compressed_vocab_size

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[name + ".weight"].T

    def rmsnorm(self, name: str, x: Tensor) -> Tensor:
        return self.weights[name + ".weight"] * (
            x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.config.rms_norm_eps)
        )

    def layer_rows(self, prompt_length: int, mode: str) -> list[LayerRows]:
        """The rows every layer runs on under a replay mode: "full", "bounded" or "exact"."""
        window, num_layers = self.config.sliding_window, self.config.num_hidden_layers
        plan = [LayerRows()] * num_layers
        for layer in range(self.num_encoder_layers, num_layers):
            later = num_layers - 1 - layer
            if mode == "bounded":
                floor = max(prompt_length - window, 0)
                plan[layer] = LayerRows(floor, floor, floor)
            elif mode == "exact":
                first = prompt_length - 1 - later * (window - 1)
                plan[layer] = LayerRows(max(first - (window - 1), 0), max(first, 0), 0)
            elif mode != "full":
                raise ValueError(f"wanted mode full, bounded or exact but got {mode!r}")
        return plan

    def generate(self, prompt: list[int], num_tokens: int, mode: str = "full") -> tuple[list[int], Tensor]:
        """The greedy continuation and the logits [num_tokens, vocab] that chose it, by recomputing everything."""
        tokens, rows = list(prompt), []
        for _ in range(num_tokens):
            rows.append(self.forward(tokens, self.layer_rows(len(prompt), mode))[-1])
            tokens.append(int(rows[-1].argmax()))
        return tokens[len(prompt) :], torch.stack(rows)

    def forward(
        self,
        tokens: list[int],
        layer_rows: list[LayerRows] | None = None,
        trace: dict[str, dict[int, Tensor]] | None = None,
    ) -> Tensor:
        """Logits [n, vocab]; NaN in rows that the last layer does not compute.

        `trace`, when given, collects per layer: "hidden" [n, S, H], "window_kv" [rows received, D],
        "compressed_kv" [G, D], "index_keys" [G, d_idx], "selected" and "candidates" [rows computed, G] masks.
        """
        c, weights = self.config, self.weights
        self.tokens = tokens
        self.positions = torch.arange(len(tokens))
        self.trace = {} if trace is None else trace
        self.compressed_kv = self.index_keys = self.selected = self.candidates = None
        x = weights["embed.weight"][torch.tensor(tokens)][:, None].repeat(1, c.hc_mult, 1)  # [n, S, H]
        pre = F.one_hot(torch.zeros(len(tokens), dtype=torch.long), c.hc_mult).float()  # [n, S]
        for layer, (first_received, first_computed, window_floor) in enumerate(
            layer_rows or [LayerRows()] * c.num_hidden_layers
        ):
            p = f"layers.{layer}."
            if layer in self.engram_tables:
                x = self.engram(layer, x)
            attn_pre, post, comb = self.mix(p + "hc_attn", x)
            h = self.rmsnorm(p + "attn_norm", collapse(x, pre))
            y = self.attention(layer, h, LayerRows(first_received, first_computed, window_floor))
            x = expand(y, x, post, comb)
            pre, post, comb = self.mix(p + "hc_ffn", x)
            y = self.moe(p + "ffn.", self.rmsnorm(p + "ffn_norm", collapse(x, attn_pre)))
            x = expand(y, x, post, comb)
            self.record("hidden", layer, x)
        return self.linear("head", self.rmsnorm("norm", collapse(x, pre)))

    def record(self, name: str, layer: int, value: Tensor) -> None:
        self.trace.setdefault(name, {})[layer] = value

    # Residual streams -------------------------------------------------------------------------------------------------
    def mix(self, name: str, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """pre [n, S] weighs the streams into a block's input; post [n, S], comb [n, S in, S out] spread its output."""
        c, s = self.config, self.config.hc_mult
        z = x.flatten(1)
        u = (z @ self.weights[name + "_fn"].T) * torch.rsqrt(z.square().mean(-1, keepdim=True) + c.rms_norm_eps)
        scale = self.weights[name + "_scale"].repeat_interleave(torch.tensor([s, s, s * s]))
        # One fused multiply-add: exact product, one rounding.
        mixed = (self.weights[name + "_base"].double() + u.double() * scale.double()).float()
        pre, post, comb = mixed.split([s, s, s * s], -1)
        comb = comb.unflatten(-1, (s, s)).softmax(-1) + c.hc_eps
        comb = comb / (comb.sum(-2, keepdim=True) + c.hc_eps)
        for _ in range(c.hc_sinkhorn_iters - 1):
            comb = comb / (comb.sum(-1, keepdim=True) + c.hc_eps)
            comb = comb / (comb.sum(-2, keepdim=True) + c.hc_eps)
        return pre.sigmoid() + c.hc_eps, 2 * post.sigmoid(), comb

    # Attention --------------------------------------------------------------------------------------------------------
    def attention(self, layer: int, x: Tensor, rows: LayerRows) -> Tensor:
        """Output [n, H], NaN in rows below first_computed, so that no later result can rest on them unnoticed."""
        c, p, rounding = self.config, f"layers.{layer}.attn.", self.cache_rounding
        n, window, ratio = len(x), c.sliding_window, c.compress_ratios[layer]
        frequencies = rope_frequencies(c, ratio)
        received, computed = self.positions[rows.first_received :], self.positions[rows.first_computed :]
        if max(rows.first_computed - window + 1, rows.window_floor) < rows.first_received and rows.first_received > 0:
            raise ValueError(
                f"layer {layer}: window attention of the computed rows would read rows not received: {rows}"
            )

        kv = rope(self.rmsnorm(p + "kv_norm", self.linear(p + "wkv", x[received])), received, frequencies)
        kv = qdq_fp8(kv) if rounding else kv
        self.record("window_kv", layer, kv)
        if layer in c.kv_source_layer_ids:
            self.publish(layer, x, frequencies)

        ql = self.rmsnorm(p + "q_norm", self.linear(p + "wq_a", x[computed]))
        q = rope(self.linear(p + "wq_b", ql).unflatten(-1, (-1, c.head_dim)), computed, frequencies)  # [rows, N, D]
        distance = computed[:, None] - received
        keys, visible = kv, (distance >= 0) & (distance < window) & (received >= rows.window_floor)
        if ratio:
            if layer in c.index_source_layer_ids:
                self.select(layer, x, ql, frequencies, rows)
            keys = torch.cat([kv, self.compressed_kv])
            visible = torch.cat([visible, self.selected[computed]], 1)

        scores = torch.einsum("tnd,kd->ntk", q, keys) * c.head_dim**-0.5
        scores = scores.masked_fill(~visible, -torch.inf)
        sink = self.weights[p + "attn_sink"][:, None, None].expand(-1, len(computed), 1)
        probabilities = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]  # the sink's value is zero
        out = rope(torch.einsum("ntk,kd->tnd", probabilities, keys), computed, frequencies, inverse=True)

        grouped = out.flatten(1).unflatten(1, (c.o_groups, -1))
        wo_a = self.weights[p + "wo_a.weight"].unflatten(0, (c.o_groups, -1))  # [groups, o_lora_rank, N/groups * D]
        y = self.linear(p + "wo_b", torch.einsum("tgi,goi->tgo", grouped, wo_a).flatten(1))
        return torch.cat([y.new_full((rows.first_computed, y.shape[1]), torch.nan), y]) if len(y) < n else y

    def publish(self, layer: int, x: Tensor, frequencies: Tensor) -> None:
        """Sets compressed KV [G, D] and index keys [G, d_idx] from every complete group of `ratio` rows."""
        p, ratio = f"layers.{layer}.attn.", self.config.compress_ratios[layer]
        num_groups = len(x) // ratio
        v = self.linear(p + "compressor.wkv", x[: num_groups * ratio])
        if ratio > 1:
            g = self.linear(p + "compressor.wgate", x[: num_groups * ratio])
            v = (g.unflatten(0, (num_groups, ratio)).softmax(1) * v.unflatten(0, (num_groups, ratio))).sum(1)
        latent = self.rmsnorm(p + "compressor.norm", v)
        keys = self.rmsnorm(p + "indexer.k_norm", self.linear(p + "indexer.wk", latent))
        firsts = torch.arange(num_groups) * ratio
        self.compressed_kv = rope(latent, firsts, frequencies)
        self.index_keys = rope(keys, firsts, frequencies)
        if self.cache_rounding:
            self.compressed_kv, self.index_keys = qdq_nvfp4(self.compressed_kv), qdq_mxfp4(self.index_keys)
        self.record("compressed_kv", layer, self.compressed_kv)
        self.record("index_keys", layer, self.index_keys)

    def select(self, layer: int, x: Tensor, ql: Tensor, frequencies: Tensor, rows: LayerRows) -> None:
        """Sets `selected` [n, G]: the compressed positions that this layer's and the later layers' rows attend to."""
        c, p = self.config, f"layers.{layer}.attn.indexer."
        positions = self.positions[rows.first_computed :]
        q = rope(self.linear(p + "wq_b", ql).unflatten(-1, (-1, c.index_head_dim)), positions, frequencies)
        q = qdq_mxfp4(q) if self.cache_rounding else q
        w = self.linear(p + "weights_proj", x[positions]) * c.index_head_dim**-0.5 * c.index_n_heads**-0.5
        scores = torch.einsum("th,thc->tc", w, torch.einsum("thd,cd->thc", q, self.index_keys).relu())
        num_visible = (positions + 1) // c.compress_ratios[layer]
        scores = scores.masked_fill(torch.arange(scores.shape[1]) >= num_visible[:, None], -torch.inf)

        def for_all_rows(mask: Tensor) -> Tensor:  # row p of the request at index p
            return F.pad(mask, (0, 0, rows.first_computed, 0))

        if layer == c.candidate_source_layer_id:
            kept = candidate_positions(scores, num_visible, c.candidate_block_size, c.candidate_topk_blocks)
            self.candidates = for_all_rows(kept)
            self.record("candidates", layer, kept)
        elif self.candidates is not None:
            scores = scores.masked_fill(~self.candidates[positions], -torch.inf)
        selected = best(scores, c.index_topk)
        self.selected = for_all_rows(selected)
        self.record("selected", layer, selected)

    # MoE --------------------------------------------------------------------------------------------------------------
    def moe(self, p: str, x: Tensor) -> Tensor:
        c = self.config
        affinity = F.softplus(self.linear(p + "gate", x)).sqrt()
        chosen = best(affinity + self.weights[p + "gate.bias"], c.num_experts_per_tok)
        gates = affinity * chosen
        gates = gates / (gates.sum(-1, keepdim=True) + 1e-20) * c.routed_scaling_factor
        y = self.expert(p + "shared_experts.", x)
        for expert in range(c.n_routed_experts):
            rows = chosen[:, expert].nonzero()[:, 0]
            if len(rows):
                y[rows] += gates[rows, expert, None] * self.expert(f"{p}experts.{expert}.", x[rows])
        return y

    def expert(self, p: str, x: Tensor) -> Tensor:
        limit = self.config.swiglu_limit
        gate, up = self.linear(p + "w1", x).clamp(max=limit), self.linear(p + "w3", x).clamp(-limit, limit)
        return self.linear(p + "w2", F.silu(gate) * up)

    # Engram -----------------------------------------------------------------------------------------------------------
    def engram(self, layer: int, x: Tensor) -> Tensor:
        c, p = self.config, f"layers.{layer}.engram."
        pad = int(self.compressed_ids[c.engram_pad_token_id])
        rows = engram_rows(self.engram_tables[layer], self.compressed_ids[np.array(self.tokens)], pad)
        e = self.weights[p + "embed.weight"][torch.from_numpy(rows)].flatten(1)
        key, value = self.linear(p + "wkv", e).split([c.hc_mult * c.hidden_size, c.hidden_size], -1)
        key = key.unflatten(-1, (c.hc_mult, c.hidden_size))
        d = (x * self.weights[p + "q_weight"] * self.weights[p + "k_weight"] * key).sum(-1)
        d = d * torch.rsqrt(x.square().mean(-1) + c.rms_norm_eps) * torch.rsqrt(key.square().mean(-1) + c.rms_norm_eps)
        d = d * c.hidden_size**-0.5
        gate = torch.sigmoid(d.sign() * d.abs().clamp(min=1e-6).sqrt())
        return x + gate[..., None] * value[:, None]


def collapse(x: Tensor, pre: Tensor) -> Tensor:
    return (pre[..., None] * x).sum(1)


def expand(y: Tensor, x: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    return post[..., None] * y[:, None] + torch.einsum("tio,tih->toh", comb, x)
