#include "models/deepseek_v41.h"

#include <algorithm>

#include "backends/rows.h"
#include "inputs/engram_hash.h"
#include "layers/linear.h"
#include "reprise/error.h"

namespace reprise {

namespace {

std::string layer_prefix(int64_t layer) { return concat("layers.", layer); }

// Counts what passes through it.
class CountingSource final : public WeightSource {
 public:
  explicit CountingSource(WeightSource& inner) : inner_(inner) {}
  bool has(const std::string& name) const override { return inner_.has(name); }
  void take_into(const std::string& name, const at::Tensor& destination) override {
    inner_.take_into(name, destination);
    bytes_ += static_cast<int64_t>(destination.nbytes());
  }
  at::Tensor take(const std::string& name, at::IntArrayRef shape, at::ScalarType dtype) override {
    at::Tensor tensor = inner_.take(name, shape, dtype);
    bytes_ += static_cast<int64_t>(tensor.nbytes());
    return tensor;
  }
  void skip(const std::string& name) override { inner_.skip(name); }
  void finish() override { inner_.finish(); }
  int64_t bytes() const { return bytes_; }

 private:
  WeightSource& inner_;
  int64_t bytes_ = 0;
};

}  // namespace

DecoderLayer::DecoderLayer(const ModelConfig& config, int64_t layer, std::optional<int64_t> engram_table_rows,
                           const ModelOptions& options, WeightSource& weights)
    : eps_(config.rms_norm_eps),
      attn_norm_(weights.take(layer_prefix(layer) + ".attn_norm.weight", {config.hidden_size}, at::kFloat)),
      ffn_norm_(weights.take(layer_prefix(layer) + ".ffn_norm.weight", {config.hidden_size}, at::kFloat)),
      hc_attn_(config, layer_prefix(layer) + ".hc_attn", weights),
      hc_ffn_(config, layer_prefix(layer) + ".hc_ffn", weights),
      attention_(config, layer, layer_prefix(layer) + ".attn", weights, options.dtype, options.cache_rounding),
      moe_(config, layer_prefix(layer) + ".ffn", weights, options.dtype) {
  if (engram_table_rows)
    engram_.emplace(config, layer_prefix(layer) + ".engram", *engram_table_rows, weights, options.dtype);
}

at::Tensor DecoderLayer::receive(at::Tensor& residual, const at::Tensor& pre, const at::Tensor& engram_rows,
                                 KvCache& cache) const {
  if (engram_) engram_->forward(engram_rows, residual);
  at::Tensor x = collapse_and_norm(residual, pre, attn_norm_, eps_);
  attention_.publish(x, cache);
  return x;
}

at::Tensor DecoderLayer::compute(at::Tensor& residual, const at::Tensor& x, KvCache& cache, RowBuffers& buffers) const {
  const StreamMix attn_mix = hc_attn_.mix(residual);
  expand_streams(attention_.compute(x, cache, buffers), attn_mix, residual);
  const StreamMix ffn_mix = hc_ffn_.mix(residual);
  expand_streams(moe_.forward(collapse_and_norm(residual, attn_mix.pre, ffn_norm_, eps_)), ffn_mix, residual);
  return ffn_mix.pre;
}

DeepseekV41::DeepseekV41(const ModelConfig& config, const ModelOptions& options, WeightSource& source)
    : config_(config),
      first_cut_(std::max<int64_t>(config.num_encoder_layers() - 1, 0)),
      buffers_(config, options.max_rows) {
  CountingSource weights(source);
  embed_ = weights.take("embed.weight", {config.vocab_size, config.hidden_size}, options.dtype);
  norm_ = weights.take("norm.weight", {config.hidden_size}, at::kFloat);
  head_ = take_linear(weights, "head.weight", config.vocab_size, config.hidden_size, options.dtype);
  // Row counts of the tables do not depend on the pad id.
  const auto hashes = make_engram_hashes(config, 0);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const auto& ids = config.engram_layer_ids;
    const auto engram = std::find(ids.begin(), ids.end(), layer);
    std::optional<int64_t> table_rows;
    if (engram != ids.end()) table_rows = hashes[static_cast<size_t>(engram - ids.begin())].num_rows();
    layers_.emplace_back(config, layer, table_rows, options, weights);
  }
  weight_bytes_ = weights.bytes();
}

void DeepseekV41::keep_rows(const at::Tensor& rows, at::Tensor& residual, at::Tensor& x) {
  if (!rows.defined()) return;
  residual = gather_rows(residual, rows);
  x = gather_rows(x, rows);
  for (const at::Tensor& buffer : {buffers_.selection, buffers_.candidates}) {
    if (buffer.defined()) compact_rows(buffer, rows);
  }
}

Model::States DeepseekV41::run_encoder(const StepInputs& inputs, KvCache& cache) {
  at::Tensor residual = embed_streams(embed_, inputs.token_ids, config_.hc_mult);
  at::Tensor pre = first_stream(residual);
  size_t engram = 0;
  const std::vector<at::Tensor>* engram_rows = &inputs.engram_rows;
  std::vector<at::Tensor> kept_engram_rows;  // of the layers still to come, once rows are cut
  std::optional<ScopedForwardContext> scope;
  for (int64_t layer = 0;; ++layer) {
    const auto& weights = layers_[static_cast<size_t>(layer)];
    const bool has_engram = engram < config_.engram_layer_ids.size() && config_.engram_layer_ids[engram] == layer;
    at::Tensor x = weights.receive(residual, pre, has_engram ? (*engram_rows)[engram] : at::Tensor(), cache);
    if (has_engram) ++engram;
    if (layer == first_cut_) return {residual, x};
    const KeptRows& kept = inputs.layers[static_cast<size_t>(layer)];
    keep_rows(kept.rows, residual, x);
    if (kept.rows.defined()) {
      kept_engram_rows = *engram_rows;
      for (size_t i = engram; i < kept_engram_rows.size(); ++i)
        kept_engram_rows[i] = gather_rows(kept_engram_rows[i], kept.rows);
      engram_rows = &kept_engram_rows;
    }
    if (kept.forward_context) scope.emplace(kept.forward_context);
    pre = weights.compute(residual, x, cache, buffers_);
  }
}

Model::States DeepseekV41::run_replay(const States& states, const StepInputs& inputs, KvCache& cache) {
  at::Tensor residual = states[0];
  if (residual.size(0) == 0) return {residual, first_stream(residual)};
  at::Tensor pre = layers_[static_cast<size_t>(first_cut_)].compute(residual, states[1], cache, buffers_);
  std::optional<ScopedForwardContext> scope;
  for (auto layer = static_cast<size_t>(first_cut_) + 1; layer < layers_.size(); ++layer) {
    at::Tensor x = layers_[layer].receive(residual, pre, {}, cache);
    const KeptRows& kept = inputs.layers[layer];
    keep_rows(kept.rows, residual, x);
    if (residual.size(0) == 0) return {residual, first_stream(residual)};
    if (kept.forward_context) scope.emplace(kept.forward_context);
    pre = layers_[layer].compute(residual, x, cache, buffers_);
  }
  return {residual, pre};
}

// What the last KV source does not choose anew for its kept rows.
std::vector<at::Tensor> DeepseekV41::row_buffers() const {
  std::vector<at::Tensor> buffers;
  const auto& index_sources = config_.index_source_layer_ids;
  if (buffers_.selection.defined() &&
      std::find(index_sources.begin(), index_sources.end(), first_cut_) == index_sources.end()) {
    buffers.push_back(buffers_.selection);
  }
  if (buffers_.candidates.defined() && config_.candidate_source_layer_id < first_cut_)
    buffers.push_back(buffers_.candidates);
  return buffers;
}

StepOutputs DeepseekV41::finish(const States& states, const StepInputs& inputs) {
  StepOutputs outputs;
  if (inputs.output_rows.size(0) == 0) return outputs;
  outputs.hidden_states = collapse_and_norm(gather_rows(states[0], inputs.output_rows),
                                            gather_rows(states[1], inputs.output_rows), norm_, config_.rms_norm_eps);
  if (inputs.logits_rows.size(0) == 0) return outputs;
  outputs.logits = linear(gather_rows(outputs.hidden_states, inputs.logits_rows), head_, at::kFloat);
  return outputs;
}

}  // namespace reprise
