#include "layers/compressor.h"

#include <set>

#include "backends/cast.h"
#include "backends/compress_groups.h"
#include "backends/norm.h"
#include "layers/cache_layout.h"
#include "layers/take_linear.h"
#include "memory/tensor_source.h"
#include "reprise/error.h"

namespace reprise {

namespace {

// Which of ModelFacts::cells a ratio has.
size_t cells_of(const ModelConfig& config, int64_t ratio) {
  std::set<int64_t> smaller;
  for (const int64_t source : config.kv_source_layer_ids) {
    const int64_t other = config.compress_ratios[static_cast<size_t>(source)];
    if (other < ratio) smaller.insert(other);
  }
  return kWindowCells + 1 + smaller.size();
}

}  // namespace

Compressor::Compressor(const ModelConfig& config, int64_t layer, const std::string& attn_prefix, WeightSource& weights,
                       at::ScalarType dtype, bool cache_rounding)
    : layer_(layer),
      ratio_(config.compress_ratios[static_cast<size_t>(layer)]),
      cells_(cells_of(config, ratio_)),
      eps_(config.rms_norm_eps),
      dtype_(dtype),
      kv_format_(cache_rounding ? CacheFormat::kNvfp4 : CacheFormat::kNone),
      key_format_(cache_rounding ? CacheFormat::kMxfp4 : CacheFormat::kNone),
      wkv_(take_linear(weights, attn_prefix + ".compressor.wkv.weight", config.head_dim, config.hidden_size,
                       at::kFloat)),
      norm_(weights.take(attn_prefix + ".compressor.norm.weight", {config.head_dim}, at::kFloat)),
      wk_(take_linear(weights, attn_prefix + ".indexer.wk.weight", config.index_head_dim, config.head_dim, dtype)),
      k_norm_(weights.take(attn_prefix + ".indexer.k_norm.weight", {config.index_head_dim}, at::kFloat)) {
  if (ratio_ > 1) {
    wgate_ =
        take_linear(weights, attn_prefix + ".compressor.wgate.weight", config.head_dim, config.hidden_size, at::kFloat);
  }
}

void Compressor::publish(const at::Tensor& x, KvCache& cache) const {
  const auto& attention = get_forward_context().attention;
  const CellRows& rows = attention.cells.at(cells_);
  REPRISE_ENSURE(rows.slots.defined(), "the context has no slots for compress ratio ", ratio_);
  const at::Tensor wide = to_float(x);
  at::Tensor v = linear(wide, wkv_, at::kFloat);
  if (ratio_ > 1) {
    const at::Tensor g = linear(wide, wgate_, at::kFloat);
    at::Tensor groups = empty_tensor(v.sizes(), v.options());
    compress_groups(v, g, attention, cache.state(kPartialGroups, layer_), groups);
    v = groups;
  }
  // Rows that complete no group hold arbitrary values from here on; their slot is the pad slot, which write_cells
  // skips.
  const at::Tensor latent = rms_norm(v, norm_, eps_);
  write_cells(latent, {.rope = rows.rope, .format = kv_format_, .slots = rows.slots},
              cache.cells(kCompressedKv, layer_));
  const at::Tensor keys = linear(cast_rows(latent, dtype_), wk_, at::kFloat);
  write_cells(keys, {.norm = k_norm_, .eps = eps_, .rope = rows.rope, .format = key_format_, .slots = rows.slots},
              cache.cells(kIndexKeys, layer_));
}

}  // namespace reprise
