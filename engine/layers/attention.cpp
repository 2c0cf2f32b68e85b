#include "layers/attention.h"

#include "backends/cache_write.h"
#include "backends/norm.h"
#include "backends/window_attention.h"
#include "layers/cache_layout.h"
#include "layers/take_linear.h"
#include "reprise/forward_context.h"

namespace reprise {

Attention::Attention(const ModelConfig& config, int64_t layer, const std::string& prefix, WeightSource& weights,
                     at::ScalarType dtype, bool cache_rounding)
    : layer_(layer),
      kv_source_(config.kv_source_of(layer)),
      ratio_(config.compress_ratios[static_cast<size_t>(layer)]),
      num_heads_(config.num_attention_heads),
      head_dim_(config.head_dim),
      eps_(config.rms_norm_eps),
      rounding_(cache_rounding),
      rope_(kv_source_ >= 0 ? kCompressedRope : kWindowRope),
      wq_a_(take_linear(weights, prefix + ".wq_a.weight", config.q_lora_rank, config.hidden_size, dtype)),
      q_norm_(weights.take(prefix + ".q_norm.weight", {config.q_lora_rank}, at::kFloat)),
      wq_b_(take_linear(weights, prefix + ".wq_b.weight", num_heads_ * head_dim_, config.q_lora_rank, dtype)),
      wkv_(take_linear(weights, prefix + ".wkv.weight", head_dim_, config.hidden_size, dtype)),
      kv_norm_(weights.take(prefix + ".kv_norm.weight", {head_dim_}, at::kFloat)),
      sink_(weights.take(prefix + ".attn_sink", {num_heads_}, at::kFloat)) {
  const int64_t groups = config.o_groups;
  const int64_t group_width = num_heads_ / groups * head_dim_;
  const at::Tensor wo_a = weights.take(prefix + ".wo_a.weight", {groups * config.o_lora_rank, group_width}, dtype);
  wo_a_ = PackedWeight(wo_a.view({groups, config.o_lora_rank, group_width}));
  wo_b_ = take_linear(weights, prefix + ".wo_b.weight", config.hidden_size, groups * config.o_lora_rank, dtype);
  if (kv_source_ == layer) compressor_.emplace(config, layer, prefix, weights, dtype, cache_rounding);
  if (config.index_source_of(layer) == layer) indexer_.emplace(config, layer, prefix, weights, dtype, cache_rounding);
}

void Attention::publish(const at::Tensor& x, KvCache& cache) const {
  const auto& attention = get_forward_context().attention;
  write_cells(linear(x, wkv_, at::kFloat),
              {.norm = kv_norm_,
               .eps = eps_,
               .rope = attention.ropes[static_cast<size_t>(rope_)],
               .format = rounding_ ? CacheFormat::kFp8 : CacheFormat::kNone,
               .slots = attention.cells[kWindowCells].slots},
              cache.cells(kWindowKv, layer_));
  if (compressor_) compressor_->publish(x, cache);
}

at::Tensor Attention::compute(const at::Tensor& x, KvCache& cache, RowBuffers& buffers) const {
  const auto& attention = get_forward_context().attention;
  const at::Tensor query_latent = rms_norm(linear(x, wq_a_, x.scalar_type()), q_norm_, eps_);
  if (indexer_) indexer_->select(x, query_latent, cache, buffers);
  AttentionParams params{.num_heads = num_heads_,
                         .head_dim = head_dim_,
                         .window = {cache.cells(kWindowKv, layer_), attention.groups[kWindowGroup], cache.page_size()},
                         .compressed = {},
                         .selection = {},
                         .sink = sink_,
                         .rope = attention.ropes[static_cast<size_t>(rope_)]};
  if (kv_source_ >= 0) {
    params.compressed = {cache.cells(kCompressedKv, kv_source_), attention.groups[kCompressedGroup],
                         cache.page_size() / ratio_};
    params.selection = buffers.selection;
  }
  const at::Tensor heads = window_sparse_attention(linear(query_latent, wq_b_, x.scalar_type()), attention, params);
  return linear(linear(heads, wo_a_, x.scalar_type()), wo_b_, x.scalar_type());
}

}  // namespace reprise
