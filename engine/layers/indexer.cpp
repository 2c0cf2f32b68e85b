#include "layers/indexer.h"

#include <ATen/core/Tensor.h>

#include <cmath>

#include "backends/cache_write.h"
#include "backends/select_positions.h"
#include "layers/cache_layout.h"
#include "layers/take_linear.h"
#include "reprise/forward_context.h"

namespace reprise {

Indexer::Indexer(const ModelConfig& config, int64_t layer, const std::string& attn_prefix, WeightSource& weights,
                 at::ScalarType dtype, bool cache_rounding)
    : source_(config.kv_source_of(layer)),
      ratio_(config.compress_ratios[static_cast<size_t>(layer)]),
      num_heads_(config.index_n_heads),
      head_dim_(config.index_head_dim),
      block_size_(config.candidate_block_size),
      makes_candidates_(layer == config.candidate_source_layer_id),
      reads_candidates_(config.candidate_source_layer_id >= 0 && layer > config.candidate_source_layer_id),
      rounding_(cache_rounding),
      wq_b_(take_linear(weights, attn_prefix + ".indexer.wq_b.weight", num_heads_ * head_dim_, config.q_lora_rank,
                        dtype)),
      weights_proj_(
          take_linear(weights, attn_prefix + ".indexer.weights_proj.weight", num_heads_, config.hidden_size, dtype)) {}

void Indexer::select(const at::Tensor& x, const at::Tensor& query_latent, KvCache& cache, RowBuffers& buffers) const {
  const auto& attention = get_forward_context().attention;
  const at::Tensor q =
      rotate_and_round(linear(query_latent, wq_b_, query_latent.scalar_type()), head_dim_,
                       attention.ropes[kCompressedRope], rounding_ ? CacheFormat::kMxfp4 : CacheFormat::kNone);
  select_compressed(
      q, linear(x, weights_proj_, at::kFloat), attention,
      {.num_heads = num_heads_,
       .head_dim = head_dim_,
       .ratio = ratio_,
       .keys = {cache.cells(kIndexKeys, source_), attention.groups[kCompressedGroup], cache.page_size() / ratio_},
       .head_scale =
           static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim_) * static_cast<double>(num_heads_))),
       .candidates_in = reads_candidates_ ? buffers.candidates : at::Tensor(),
       .candidate_block_size = block_size_},
      {buffers.selection, makes_candidates_ ? buffers.candidates : at::Tensor()});
}

}  // namespace reprise
