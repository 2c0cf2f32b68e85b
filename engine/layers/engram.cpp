#include "layers/engram.h"

#include "backends/embedding.h"
#include "backends/gated_memory.h"
#include "layers/take_linear.h"

namespace reprise {

Engram::Engram(const ModelConfig& config, const std::string& prefix, int64_t table_rows, WeightSource& weights,
               at::ScalarType dtype)
    : eps_(config.rms_norm_eps),
      table_(weights.take(prefix + ".embed.weight", {table_rows, config.engram_head_dim}, dtype)),
      wkv_(take_linear(weights, prefix + ".wkv.weight", (config.hc_mult + 1) * config.hidden_size,
                       (config.engram_max_ngram_size - 1) * config.engram_n_heads * config.engram_head_dim, dtype)) {
  qk_weight_ = weights.take(prefix + ".q_weight", {config.hc_mult, config.hidden_size}, at::kFloat);
  qk_weight_.mul_(weights.take(prefix + ".k_weight", {config.hc_mult, config.hidden_size}, at::kFloat));
}

void Engram::forward(const at::Tensor& rows, at::Tensor& residual) const {
  const at::Tensor memory = linear(lookup_rows(table_, rows), wkv_, at::kFloat);
  add_gated_memory(memory, qk_weight_, eps_, residual);
}

}  // namespace reprise
