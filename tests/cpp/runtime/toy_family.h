#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <memory>
#include <vector>

#include "checkpoint/json_file.h"
#include "models/family.h"

// A family of its own, as far from DeepSeek-V4.1 as the engine allows: two layers, of which the first caches one vector
// a token in a group without a window, and the second owns no KV and reads the first one's. All an engine needs of it.
namespace reprise::testing {

constexpr int64_t kToyVocab = 48;
constexpr int64_t kToyHidden = 8;

class Toy final : public Model, public Decoder {
 public:
  Toy() {
    facts_.model_type = "toy";
    facts_.dtype = Dtype::kFloat32;
    facts_.vocab_size = kToyVocab;
    facts_.hidden_size = kToyHidden;
    facts_.max_position_embeddings = 256;
    facts_.layers = {{.kv_is_cacheable = true}, {.owns_kv = false}};
    facts_.num_encoder_layers = 1;
    facts_.groups = {{.name = "shared", .cacheable = true}};
    facts_.cache_tensors = {{.kind = 0, .layer = 0, .group = 0, .width = kToyHidden}};
    facts_.cells = {{.group = 0}};
  }

  const ModelFacts& facts() const override { return facts_; }
  std::unique_ptr<Model> make(const ModelOptions&, WeightSource& weights) const override {
    auto model = std::make_unique<Toy>();
    model->embed_ = weights.take("embed.weight", {kToyVocab, kToyHidden}, at::kFloat);
    return model;
  }
  Rows embed(const StepInputs& inputs) override { return {embed_.index_select(0, inputs.token_ids)}; }
  void receive(int64_t layer, Rows& rows, KvCache& cache) override {
    if (layer == 0) cache.cells(0, 0).index_copy_(0, get_forward_context().attention.cells[0].slots, rows[0]);
  }
  // Adds each earlier token's vector, weighted by its distance.
  void compute(int64_t layer, Rows& rows, KvCache& cache) override {
    const AttentionMetadata& attention = get_forward_context().attention;
    const at::Tensor& table = attention.groups[0].block_table;
    at::Tensor out = rows[0].clone();
    for (int64_t row = 0; row < out.size(0); ++row) {
      const int32_t sequence = attention.sequence_index.const_data_ptr<int32_t>()[row];
      if (sequence < 0) continue;  // padding
      const int32_t slot = attention.state_slots.const_data_ptr<int32_t>()[sequence];
      const int64_t position = attention.positions.const_data_ptr<int64_t>()[row];
      for (int64_t p = 0; p <= position; ++p) {
        const int32_t page = table.const_data_ptr<int32_t>()[slot * table.size(1) + p / cache.page_size()];
        const float weight = 1.0f / static_cast<float>(1 + layer + position - p);
        out.select(0, row).add_(cache.cells(0, 0).select(0, page * cache.page_size() + p % cache.page_size()), weight);
      }
    }
    rows[0] = out;
  }
  at::Tensor finish(const Rows& rows) override { return rows[0]; }
  at::Tensor logits(const at::Tensor& hidden_states) override { return hidden_states.matmul(embed_.t()); }
  int64_t weight_bytes() const override { return static_cast<int64_t>(embed_.nbytes()); }

 private:
  ModelFacts facts_;
  at::Tensor embed_;
};

inline const std::vector<Family>& toy_families() {
  static const std::vector<Family> families = {
      {{"toy"}, [](const std::string&) -> std::unique_ptr<Decoder> { return std::make_unique<Toy>(); }}};
  return families;
}

}  // namespace reprise::testing
