#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/weight_source.h"
#include "layers/attention.h"
#include "layers/engram.h"
#include "layers/hyper_connection.h"
#include "layers/moe.h"
#include "models/model.h"

namespace reprise {

// One block of the decoder: attention and MoE between hyper-connections.
class DecoderLayer {
 public:
  DecoderLayer(const ModelConfig& config, int64_t layer, std::optional<int64_t> engram_table_rows,
               const ModelOptions& options, WeightSource& weights);

  // For every row the layer receives: adds Engram's memory, collapses the streams by the previous block's `pre` and
  // publishes KV. residual [T, S, H] in place; returns the normed attention input [T, H].
  at::Tensor receive(at::Tensor& residual, const at::Tensor& pre, const at::Tensor& engram_rows, KvCache& cache) const;
  bool has_engram() const { return engram_.has_value(); }
  // For the kept rows: attention and MoE. residual in place; returns the next block's `pre` [T, S].
  at::Tensor compute(at::Tensor& residual, const at::Tensor& x, KvCache& cache, RowBuffers& buffers) const;

 private:
  double eps_;
  at::Tensor attn_norm_;
  at::Tensor ffn_norm_;
  std::optional<Engram> engram_;
  HyperConnection hc_attn_;
  HyperConnection hc_ffn_;
  Attention attention_;
  MixtureOfExperts moe_;
};

// The text backbone of DeepSeek-V4.1. Its rows: the residual streams [T, S, H]; before a layer the streams' weights
// `pre` [T, S], between its halves its normed attention input [T, H]; then the Engram rows of the layers still to come,
// the next one last.
class DeepseekV41 final : public Model {
 public:
  DeepseekV41(const ModelConfig& config, const ModelOptions& options, WeightSource& weights);

  const ModelFacts& facts() const override { return facts_; }
  Rows embed(const StepInputs& inputs) override;
  void receive(int64_t layer, Rows& rows, KvCache& cache) override;
  void compute(int64_t layer, Rows& rows, KvCache& cache) override;
  std::span<const at::Tensor> row_buffers(int64_t layer) const override;
  at::Tensor finish(const Rows& rows) override;
  at::Tensor logits(const at::Tensor& hidden_states) override;
  int64_t weight_bytes() const override { return weight_bytes_; }

 private:
  ModelConfig config_;
  ModelFacts facts_;
  at::Tensor embed_;   // [vocab, H]
  at::Tensor norm_;    // float32 [H]
  PackedWeight head_;  // [vocab, H]
  std::vector<DecoderLayer> layers_;
  RowBuffers buffers_;
  std::vector<std::vector<at::Tensor>> live_buffers_;  // per layer, see row_buffers()
  int64_t weight_bytes_ = 0;
};

}  // namespace reprise
