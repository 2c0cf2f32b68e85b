#include "inputs/row_sets.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <set>

#include "backends/rope.h"
#include "backends/rows.h"
#include "memory/reused_tensor.h"
#include "reprise/error.h"

namespace reprise {

namespace {

RopeRows gather(const RopeRows& rope, const at::Tensor& rows) {
  return {gather_rows(rope.cos, rows), gather_rows(rope.sin, rows)};
}

int64_t end_of(const ScheduledSequence& s) { return s.start + s.num_rows; }

// The rows of `inner` as indices into the rows of `outer`, both sets of each sequence's last rows.
at::Tensor rows_within(const StepPlan& plan, const std::vector<int64_t>& outer, const std::vector<int64_t>& inner) {
  int64_t count = 0;
  for (size_t i = 0; i < inner.size(); ++i) count += end_of(plan.sequences[i]) - inner[i];
  at::Tensor rows = at::empty({count}, at::kLong);
  int64_t* next = rows.mutable_data_ptr<int64_t>();
  int64_t base = 0;
  for (size_t i = 0; i < inner.size(); ++i) {
    const int64_t end = end_of(plan.sequences[i]);
    for (int64_t p = inner[i]; p < end; ++p) *next++ = base + p - outer[i];
    base += end - outer[i];
  }
  return rows;
}

}  // namespace

RowSets::RowSets(const ModelConfig& config, int64_t page_size)
    : config_(config),
      page_size_(page_size),
      window_frequencies_(rope_frequencies(config.qk_rope_head_dim, config.rope_theta, {})),
      compressed_frequencies_(rope_frequencies(config.qk_rope_head_dim, config.compress_rope_theta,
                                               {.factor = config.yarn_factor,
                                                .original_max_position = config.yarn_original_max_position,
                                                .beta_fast = config.yarn_beta_fast,
                                                .beta_slow = config.yarn_beta_slow})) {
  std::set<int64_t> ratios;
  for (const int64_t source : config.kv_source_layer_ids)
    ratios.insert(config.compress_ratios[static_cast<size_t>(source)]);
  ratios_.assign(ratios.begin(), ratios.end());
}

void RowSets::build(const StepPlan& plan, const at::Tensor& window_table, const at::Tensor& compressed_table,
                    StepInputs& inputs) {
  inputs.layers.assign(static_cast<size_t>(config_.num_hidden_layers), {});
  if (inputs.forward_context == nullptr || inputs.forward_context.use_count() > 1)
    inputs.forward_context = std::make_shared<ForwardContext>();
  fill_batch(plan, window_table, compressed_table, *inputs.forward_context);
  Cut& now = last_;
  now.firsts.clear();
  for (const auto& s : plan.sequences) now.firsts.push_back(s.start);
  now.floors.assign(plan.sequences.size(), 0);
  if (std::none_of(plan.sequences.begin(), plan.sequences.end(), [](const auto& s) { return s.row_plan != nullptr; }))
    return;

  std::shared_ptr<ForwardContext> context;
  for (size_t layer = 0; layer < inputs.layers.size(); ++layer) {
    Cut next = now;
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      const auto& s = plan.sequences[i];
      if (!s.row_plan) continue;
      const LayerRows& rows = s.row_plan->layers[layer];
      next.firsts[i] = std::clamp(rows.first_computed, now.firsts[i], end_of(s));
      next.floors[i] = rows.window_floor;
    }
    if (next != now) {
      if (next.firsts != now.firsts) inputs.layers[layer].rows = rows_within(plan, now.firsts, next.firsts);
      const bool publishes = static_cast<int64_t>(layer) + 1 < config_.num_encoder_layers();
      context = cut_context(plan, next, *inputs.forward_context, publishes);
      now = std::move(next);
    }
    inputs.layers[layer].forward_context = context;
  }
}

void RowSets::fill_batch(const StepPlan& plan, const at::Tensor& window_table, const at::Tensor& compressed_table,
                         ForwardContext& context) const {
  const int64_t rows = plan.num_rows;
  const auto sequences = static_cast<int64_t>(plan.sequences.size());
  context.num_rows = rows;
  context.num_padding_rows = 0;
  context.is_replay = false;
  auto& attention = context.attention;
  reuse_tensor(attention.positions, {rows}, at::kLong);
  reuse_tensor(attention.sequence_index, {rows}, at::kInt);
  reuse_tensor(attention.sequence_starts, {sequences + 1}, at::kLong);
  reuse_tensor(attention.state_slots, {sequences}, at::kInt);
  reuse_tensor(attention.window_starts, {rows}, at::kLong);
  reuse_tensor(attention.window_slots, {rows}, at::kLong);
  attention.window_block_table = window_table;
  attention.compressed_block_table = compressed_table;
  int64_t* position = attention.positions.mutable_data_ptr<int64_t>();
  int32_t* index = attention.sequence_index.mutable_data_ptr<int32_t>();
  int64_t* starts = attention.sequence_starts.mutable_data_ptr<int64_t>();
  int64_t* window_start = attention.window_starts.mutable_data_ptr<int64_t>();
  int64_t* window_slot = attention.window_slots.mutable_data_ptr<int64_t>();
  int64_t row = 0;
  for (int64_t i = 0; i < sequences; ++i) {
    const auto& s = plan.sequences[static_cast<size_t>(i)];
    attention.state_slots.mutable_data_ptr<int32_t>()[i] = s.state_slot;
    starts[i] = row;
    const int32_t* pages = window_table.const_data_ptr<int32_t>() + s.state_slot * window_table.size(1);
    for (int64_t p = s.start; p < end_of(s); ++p, ++row) {
      position[row] = p;
      index[row] = static_cast<int32_t>(i);
      window_start[row] = std::max<int64_t>(p - config_.sliding_window + 1, 0);
      window_slot[row] = pages[p / page_size_] * page_size_ + p % page_size_;
    }
  }
  starts[sequences] = row;
  fill_rope(attention.positions, 0, window_frequencies_, attention.window_rope);
  fill_published(plan, compressed_table, attention);
}

void RowSets::fill_rope(const at::Tensor& positions, int64_t offset, const std::vector<float>& frequencies,
                        RopeRows& rope) const {
  const int64_t rows = positions.size(0);
  const auto half = static_cast<int64_t>(frequencies.size());
  reuse_tensor(rope.cos, {rows, half}, at::kFloat);
  reuse_tensor(rope.sin, {rows, half}, at::kFloat);
  rope_angles(positions, offset, frequencies, {rope.cos, rope.sin});
}

void RowSets::fill_published(const StepPlan& plan, const at::Tensor& compressed_table,
                             AttentionMetadata& attention) const {
  attention.published.resize(ratios_.size());
  if (ratios_.empty()) {
    attention.compressed_rope = {};
    return;
  }
  // At ratio 1 the rope is the batch's own, which is to be filled again.
  if (ratios_.front() == 1) attention.published.front().rope = {};
  fill_rope(attention.positions, 0, compressed_frequencies_, attention.compressed_rope);
  for (size_t i = 0; i < ratios_.size(); ++i) {
    const int64_t ratio = ratios_[i];
    PublishedRows& published = attention.published[i];
    published.ratio = ratio;
    reuse_tensor(published.slots, {plan.num_rows}, at::kLong);
    int64_t* slot = published.slots.mutable_data_ptr<int64_t>();
    const int64_t page_cells = page_size_ / ratio;
    int64_t row = 0;
    for (const auto& s : plan.sequences) {
      const int32_t* pages = compressed_table.const_data_ptr<int32_t>() + s.state_slot * compressed_table.size(1);
      for (int64_t p = s.start; p < end_of(s); ++p, ++row) {
        const bool completes_group = (p + 1) % ratio == 0 && p >= s.publish_from;
        slot[row] = completes_group ? pages[p / page_size_] * page_cells + p / ratio % page_cells : 0;
      }
    }
    if (ratio == 1) {
      published.rope = attention.compressed_rope;
    } else {
      // A group stands at its first token's position.
      fill_rope(attention.positions, ratio - 1, compressed_frequencies_, published.rope);
    }
  }
}

std::shared_ptr<ForwardContext> RowSets::cut_context(const StepPlan& plan, const Cut& cut, const ForwardContext& batch,
                                                     bool publishes) const {
  std::vector<int64_t> starts_of_batch;
  for (const auto& s : plan.sequences) starts_of_batch.push_back(s.start);
  const at::Tensor rows = rows_within(plan, starts_of_batch, cut.firsts);
  auto context = std::make_shared<ForwardContext>();
  context->num_rows = rows.size(0);
  context->is_replay = !publishes;
  const auto& whole = batch.attention;
  auto& attention = context->attention;
  attention.positions = gather_rows(whole.positions, rows);
  attention.sequence_index = gather_rows(whole.sequence_index, rows);
  attention.state_slots = whole.state_slots;
  attention.window_slots = gather_rows(whole.window_slots, rows);
  attention.window_block_table = whole.window_block_table;
  attention.compressed_block_table = whole.compressed_block_table;
  attention.window_rope = gather(whole.window_rope, rows);
  if (!ratios_.empty()) attention.compressed_rope = gather(whole.compressed_rope, rows);
  // Past the last KV source nobody publishes any more.
  if (publishes) {
    for (const auto& p : whole.published) {
      attention.published.push_back({p.ratio, gather_rows(p.slots, rows), gather(p.rope, rows)});
    }
  }
  const auto sequences = static_cast<int64_t>(plan.sequences.size());
  attention.sequence_starts = at::empty({sequences + 1}, at::kLong);
  attention.window_starts = gather_rows(whole.window_starts, rows);
  int64_t* starts = attention.sequence_starts.mutable_data_ptr<int64_t>();
  int64_t* window_start = attention.window_starts.mutable_data_ptr<int64_t>();
  int64_t row = 0;
  for (int64_t i = 0; i < sequences; ++i) {
    const auto at = static_cast<size_t>(i);
    starts[i] = row;
    for (const int64_t end = starts[i] + end_of(plan.sequences[at]) - cut.firsts[at]; row < end; ++row) {
      window_start[row] = std::max(window_start[row], cut.floors[at]);
    }
  }
  starts[sequences] = row;
  return context;
}

void RowSets::choose_outputs(const StepPlan& plan, const std::vector<bool>& hidden_rows, StepInputs& inputs) {
  outputs_.clear();
  logits_.clear();
  int64_t base = 0;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const auto& s = plan.sequences[i];
    const int64_t first = last_.firsts[i];
    const bool all = !hidden_rows.empty() && hidden_rows[i];
    const int64_t first_logits = s.start + s.first_logits_row;
    const int64_t first_output = all ? s.start : first_logits;
    REPRISE_ENSURE(first_output == end_of(s) || first_output >= first, "request ", s.id, " reads row ", first_output,
                   " but its last layer computes rows from ", first);
    for (int64_t p = first_output; p < end_of(s); ++p) {
      if (p >= first_logits) logits_.push_back(static_cast<int64_t>(outputs_.size()));
      outputs_.push_back(base + p - first);
    }
    base += end_of(s) - first;
  }
  const auto fill = [](const std::vector<int64_t>& values, at::Tensor& tensor) {
    reuse_tensor(tensor, {static_cast<int64_t>(values.size())}, at::kLong);
    std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<int64_t>());
  };
  fill(outputs_, inputs.output_rows);
  fill(logits_, inputs.logits_rows);
}

}  // namespace reprise
