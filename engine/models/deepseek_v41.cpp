#include "models/deepseek_v41.h"

#include <algorithm>

#include "backends/embedding.h"
#include "inputs/engram_hash.h"
#include "layers/take_linear.h"
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

// Of the row buffers those that hold, before `layer` computes, what it or a later layer reads.
std::vector<at::Tensor> live_buffers(const ModelConfig& config, const RowBuffers& buffers, int64_t layer) {
  std::vector<at::Tensor> live;
  const auto& sources = config.index_source_layer_ids;
  const auto next_source = std::lower_bound(sources.begin(), sources.end(), layer);
  const int64_t reselected = next_source == sources.end() ? config.num_hidden_layers : *next_source;
  for (int64_t reader = layer; reader < reselected; ++reader) {
    if (config.kv_source_of(reader) < 0) continue;
    live.push_back(buffers.selection);
    break;
  }
  const int64_t candidates_made = config.candidate_source_layer_id;
  if (candidates_made >= 0 && candidates_made < layer && next_source != sources.end())
    live.push_back(buffers.candidates);
  return live;
}

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
    : config_(config), facts_(make_model_facts(config)), buffers_(config, options.max_rows) {
  CountingSource weights(source);
  embed_ = weights.take("embed.weight", {config.vocab_size, config.hidden_size}, options.dtype);
  norm_ = weights.take("norm.weight", {config.hidden_size}, at::kFloat);
  head_ = take_linear(weights, "head.weight", config.vocab_size, config.hidden_size, options.dtype);
  // Row counts of the tables do not depend on the pad id.
  const auto hashes = make_engram_hashes(facts_.engram, 0);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const auto& ids = config.engram_layer_ids;
    const auto engram = std::find(ids.begin(), ids.end(), layer);
    std::optional<int64_t> table_rows;
    if (engram != ids.end()) table_rows = hashes[static_cast<size_t>(engram - ids.begin())].num_rows();
    layers_.emplace_back(config, layer, table_rows, options, weights);
  }
  weight_bytes_ = weights.bytes();
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    live_buffers_.push_back(live_buffers(config, buffers_, layer));
}

Rows DeepseekV41::embed(const StepInputs& inputs) {
  Rows rows{embed_streams(embed_, inputs.token_ids, config_.hc_mult)};
  rows.push_back(first_stream(rows[0]));
  rows.append(inputs.engram_rows.rbegin(), inputs.engram_rows.rend());
  return rows;
}

void DeepseekV41::receive(int64_t layer, Rows& rows, KvCache& cache) {
  const DecoderLayer& weights = layers_[static_cast<size_t>(layer)];
  at::Tensor engram_rows;
  if (weights.has_engram()) engram_rows = rows.pop_back_val();
  rows[1] = weights.receive(rows[0], rows[1], engram_rows, cache);
}

void DeepseekV41::compute(int64_t layer, Rows& rows, KvCache& cache) {
  rows[1] = layers_[static_cast<size_t>(layer)].compute(rows[0], rows[1], cache, buffers_);
}

std::span<const at::Tensor> DeepseekV41::row_buffers(int64_t layer) const {
  return live_buffers_[static_cast<size_t>(layer)];
}

at::Tensor DeepseekV41::finish(const Rows& rows) {
  return collapse_and_norm(rows[0], rows[1], norm_, config_.rms_norm_eps);
}

at::Tensor DeepseekV41::logits(const at::Tensor& hidden_states) { return linear(hidden_states, head_, at::kFloat); }

}  // namespace reprise
