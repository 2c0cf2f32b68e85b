#pragma once

#include <optional>
#include <string>
#include <vector>

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

// The text backbone of DeepSeek-V4.1.
class DeepseekV41 final : public Model {
 public:
  DeepseekV41(const ModelConfig& config, const ModelOptions& options, WeightSource& weights);

  States run_encoder(const StepInputs& inputs, KvCache& cache) override;
  States run_replay(const States& states, const StepInputs& inputs, KvCache& cache) override;
  StepOutputs finish(const States& states, const StepInputs& inputs) override;
  std::vector<at::Tensor> row_buffers() const override;
  int64_t weight_bytes() const override { return weight_bytes_; }

 private:
  // Cuts a layer's states, and the row buffers in place, to the rows it computes.
  void keep_rows(const at::Tensor& rows, at::Tensor& residual, at::Tensor& x);

  ModelConfig config_;
  int64_t first_cut_;  // the layer within which run_encoder ends: the last KV source, or 0
  at::Tensor embed_;   // [vocab, H]
  at::Tensor norm_;    // float32 [H]
  PackedWeight head_;  // [vocab, H]
  std::vector<DecoderLayer> layers_;
  RowBuffers buffers_;
  int64_t weight_bytes_ = 0;
};

}  // namespace reprise
