#include "inputs/upload.h"

#include <algorithm>
#include <cstring>

#include "backends/rope.h"
#include "memory/reused_tensor.h"

namespace reprise {

namespace {

template <typename T>
void fill(at::Tensor& tensor, const std::vector<T>& values, at::IntArrayRef sizes) {
  reuse_tensor(tensor, sizes, c10::CppTypeToScalarType<T>::value);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<T>());
}

template <typename T>
void fill(at::Tensor& tensor, const std::vector<T>& values) {
  fill(tensor, values, {static_cast<int64_t>(values.size())});
}

void fill_rope(const at::Tensor& positions, int64_t offset, const std::vector<float>& frequencies, RopeRows& rope) {
  const int64_t rows = positions.size(0);
  const auto half = static_cast<int64_t>(frequencies.size());
  reuse_tensor(rope.cos, {rows, half}, at::kFloat);
  reuse_tensor(rope.sin, {rows, half}, at::kFloat);
  rope_angles(positions, offset, frequencies, rope);
}

// The angles of rows are those that the set before made.
void take_rope(const RopeRows& from, const RowRuns& kept, RopeRows& rope) {
  const int64_t half = from.cos.size(1);
  for (const auto part : {&RopeRows::cos, &RopeRows::sin}) {
    reuse_tensor(rope.*part, {kept.num_rows(), half}, at::kFloat);
    for (const RowRun& run : kept.runs()) {
      std::memcpy((rope.*part).mutable_data_ptr<float>() + run.to * half,
                  (from.*part).const_data_ptr<float>() + run.from * half,
                  static_cast<size_t>(run.count * half) * sizeof(float));
    }
  }
}

}  // namespace

Uploader::Uploader(const ModelFacts& model, std::vector<at::Tensor> block_tables)
    : block_tables_(std::move(block_tables)), groups_(model.groups), cells_(model.cells) {
  for (const RopeFacts& rope : model.ropes) {
    frequencies_.push_back(rope_frequencies(rope.dim, rope.theta,
                                            {.factor = rope.yarn_factor,
                                             .original_max_position = rope.yarn_original_max_position,
                                             .beta_fast = rope.yarn_beta_fast,
                                             .beta_slow = rope.yarn_beta_slow}));
  }
}

void Uploader::upload(const StepLayout& layout, const std::vector<std::vector<int64_t>>& engram_rows,
                      StepInputs& inputs) const {
  const auto rows = static_cast<int64_t>(layout.token_ids.size());
  fill(inputs.token_ids, layout.token_ids);
  inputs.engram_rows.resize(engram_rows.size());
  for (size_t i = 0; i < engram_rows.size(); ++i)
    fill(inputs.engram_rows[i], engram_rows[i], {rows, static_cast<int64_t>(engram_rows[i].size()) / rows});
  inputs.sets.resize(layout.num_sets);
  for (size_t set = 0; set < layout.num_sets; ++set) upload_set(layout, set, inputs);
  inputs.set_of_layer = layout.set_of_layer;
  inputs.output_rows = layout.output_rows;
  inputs.logits_rows = layout.logits_rows;
}

void Uploader::upload_set(const StepLayout& layout, size_t index, StepInputs& inputs) const {
  const RowSetLayout& from = layout.sets[index];
  RowSet& set = inputs.sets[index];
  set.kept = from.kept;
  if (set.forward_context == nullptr || set.forward_context.use_count() > 1)
    set.forward_context = std::make_shared<ForwardContext>();
  ForwardContext& context = *set.forward_context;
  context.num_rows = from.num_rows();
  context.num_padding_rows = 0;
  context.is_replay = from.is_replay;
  AttentionMetadata& attention = context.attention;
  fill(attention.positions, from.positions);
  fill(attention.sequence_index, from.sequence_index);
  fill(attention.sequence_starts, from.sequence_starts);
  fill(attention.state_slots, layout.state_slots);
  attention.groups.resize(block_tables_.size());
  for (size_t group = 0; group < block_tables_.size(); ++group) {
    attention.groups[group].block_table = block_tables_[group];
    if (groups_[group].window > 0) fill(attention.groups[group].window_starts, from.window_starts[group]);
  }
  attention.cells.resize(cells_.size());
  attention.ropes.resize(frequencies_.size());
  for (size_t c = 0; c < cells_.size(); ++c) {
    if (from.writes[c]) {
      fill(attention.cells[c].slots, from.slots[c]);
    } else {
      attention.cells[c] = {};
    }
  }
  if (index == 0) {
    fill_ropes(attention);
    return;
  }
  const AttentionMetadata& before = inputs.sets[index - 1].forward_context->attention;
  for (size_t r = 0; r < frequencies_.size(); ++r) take_rope(before.ropes[r], from.kept, attention.ropes[r]);
  for (size_t c = 0; c < cells_.size(); ++c) {
    if (cells_[c].rope < 0 || !from.writes[c]) continue;
    if (cells_[c].ratio == 1) {
      attention.cells[c].rope = attention.ropes[static_cast<size_t>(cells_[c].rope)];
    } else {
      take_rope(before.cells[c].rope, from.kept, attention.cells[c].rope);
    }
  }
}

void Uploader::fill_ropes(AttentionMetadata& attention) const {
  for (size_t c = 0; c < cells_.size(); ++c) {
    // At ratio 1 they are the rows' own, whose memory is to serve again.
    if (cells_[c].rope >= 0 && cells_[c].ratio == 1) attention.cells[c].rope = {};
  }
  for (size_t r = 0; r < frequencies_.size(); ++r)
    fill_rope(attention.positions, 0, frequencies_[r], attention.ropes[r]);
  for (size_t c = 0; c < cells_.size(); ++c) {
    if (cells_[c].rope < 0) continue;
    const auto r = static_cast<size_t>(cells_[c].rope);
    if (cells_[c].ratio == 1) {
      attention.cells[c].rope = attention.ropes[r];
    } else {
      // A group stands at its first token's position.
      fill_rope(attention.positions, cells_[c].ratio - 1, frequencies_[r], attention.cells[c].rope);
    }
  }
}

}  // namespace reprise
