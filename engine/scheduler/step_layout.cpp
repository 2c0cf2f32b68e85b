#include "scheduler/step_layout.h"

#include <algorithm>

#include "reprise/error.h"

namespace reprise {
namespace {

int64_t end_of(const ScheduledSequence& s) { return s.start + s.num_rows; }

// The first row that each sequence brings, and its window floor.
struct Cut {
  int64_t first = 0;
  int64_t floor = 0;
};

// Whether layer `layer` or a later one writes cells.
bool is_written_from(const ModelFacts& model, const CellFacts& cells, int64_t layer) {
  return std::any_of(model.cache_tensors.begin(), model.cache_tensors.end(), [&](const CacheTensorFacts& tensor) {
    return tensor.layer >= layer && tensor.group == cells.group && tensor.ratio == cells.ratio;
  });
}

RowSetLayout& next_set(StepLayout& layout) {
  if (layout.sets.size() == layout.num_sets) layout.sets.emplace_back();
  return layout.sets[layout.num_sets++];
}

class Layouter {
 public:
  Layouter(const StepPlan& plan, const ModelFacts& model, const BlockTables& tables, int64_t page_size)
      : plan_(plan), model_(model), tables_(tables), page_size_(page_size) {}

  // The rows that `cut_of` leaves of each sequence; layer `receiver` is the first to receive them.
  template <typename CutOf>
  void fill(RowSetLayout& set, int64_t receiver, const CutOf& cut_of) const {
    int64_t num_rows = 0;
    set.sequence_starts.clear();
    for (size_t i = 0; i < plan_.sequences.size(); ++i) {
      set.sequence_starts.push_back(num_rows);
      num_rows += end_of(plan_.sequences[i]) - cut_of(i).first;
    }
    set.sequence_starts.push_back(num_rows);
    const auto rows = static_cast<size_t>(num_rows);
    set.positions.resize(rows);
    set.sequence_index.resize(rows);
    set.window_starts.resize(model_.groups.size());
    set.writes.resize(model_.cells.size());
    set.slots.resize(model_.cells.size());
    for (size_t i = 0; i < plan_.sequences.size(); ++i) {
      auto row = static_cast<size_t>(set.sequence_starts[i]);
      for (int64_t p = cut_of(i).first; p < end_of(plan_.sequences[i]); ++p, ++row) {
        set.positions[row] = p;
        set.sequence_index[row] = static_cast<int32_t>(i);
      }
    }
    for (size_t group = 0; group < model_.groups.size(); ++group) {
      const int64_t window = model_.groups[group].window;
      std::vector<int64_t>& starts = set.window_starts[group];
      starts.resize(window > 0 ? rows : 0);
      if (window == 0) continue;
      for (size_t row = 0; row < rows; ++row) {
        starts[row] = std::max(
            {set.positions[row] - window + 1, cut_of(static_cast<size_t>(set.sequence_index[row])).floor, int64_t{0}});
      }
    }
    for (size_t c = 0; c < model_.cells.size(); ++c) fill_slots(set, c, receiver);
  }

 private:
  void fill_slots(RowSetLayout& set, size_t c, int64_t receiver) const {
    const CellFacts& cells = model_.cells[c];
    std::vector<int64_t>& slots = set.slots[c];
    set.writes[c] = is_written_from(model_, cells, receiver);
    if (!set.writes[c]) return;
    slots.resize(set.positions.size());
    const int64_t cells_per_page = page_size_ / cells.ratio;
    const bool cacheable = model_.groups[static_cast<size_t>(cells.group)].cacheable;
    for (size_t i = 0; i < plan_.sequences.size(); ++i) {
      const ScheduledSequence& s = plan_.sequences[i];
      const int32_t* pages = tables_.pages(cells.group, s.state_slot);
      // Below it the pages came with a prefix-cache hit.
      const int64_t first_written = cacheable ? s.publish_from : 0;
      for (auto row = static_cast<size_t>(set.sequence_starts[i]);
           row < static_cast<size_t>(set.sequence_starts[i + 1]); ++row) {
        const int64_t p = set.positions[row];
        const bool writes = (p + 1) % cells.ratio == 0 && p >= first_written;
        slots[row] = writes ? pages[p / page_size_] * cells_per_page + p / cells.ratio % cells_per_page : 0;
      }
    }
  }

  const StepPlan& plan_;
  const ModelFacts& model_;
  const BlockTables& tables_;
  int64_t page_size_;
};

// Each layer's set, a new one wherever a layer computes fewer rows than it receives or reads a narrower window.
void lay_out_narrower_sets(const StepPlan& plan, const ModelFacts& model, const Layouter& layouter,
                           StepLayout& layout) {
  std::vector<Cut> now;
  for (const auto& s : plan.sequences) now.push_back({s.start, 0});
  std::vector<Cut> next = now;
  for (size_t layer = 0; layer < layout.set_of_layer.size(); ++layer) {
    bool narrows = false;
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      const auto& s = plan.sequences[i];
      if (!s.row_plan) continue;
      const LayerRows& rows = s.row_plan->layers[layer];
      next[i] = {std::clamp(rows.first_computed, now[i].first, end_of(s)), rows.window_floor};
      narrows = narrows || next[i].first != now[i].first || next[i].floor != now[i].floor;
    }
    if (narrows) {
      RowSetLayout& set = next_set(layout);
      const RowSetLayout& before = layout.sets[layout.num_sets - 2];
      set.kept.clear();
      for (size_t i = 0; i < plan.sequences.size(); ++i) {
        const int64_t count = end_of(plan.sequences[i]) - next[i].first;
        set.kept.append(before.sequence_starts[i + 1] - count, count);
      }
      const auto receiver = static_cast<int64_t>(layer) + 1;
      layouter.fill(set, receiver, [&](size_t i) { return next[i]; });
      set.is_replay = receiver >= model.num_encoder_layers;
      now = next;
    }
    layout.set_of_layer[layer] = static_cast<int32_t>(layout.num_sets - 1);
  }
}

void choose_outputs(const StepPlan& plan, const std::vector<bool>& hidden_rows, StepLayout& layout) {
  layout.output_rows.clear();
  layout.logits_rows.clear();
  const RowSetLayout& last = layout.sets[layout.num_sets - 1];
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const auto& s = plan.sequences[i];
    const int64_t num_logits = s.num_rows - s.first_logits_row;
    const int64_t num_outputs = !hidden_rows.empty() && hidden_rows[i] ? s.num_rows : num_logits;
    const int64_t end = last.sequence_starts[i + 1];
    REPRISE_ENSURE(num_outputs <= end - last.sequence_starts[i], "request ", s.id, " reads ", num_outputs,
                   " rows but its last layer computes ", end - last.sequence_starts[i]);
    layout.output_rows.append(end - num_outputs, num_outputs);
    layout.logits_rows.append(layout.output_rows.num_rows() - num_logits, num_logits);
  }
}

}  // namespace

void lay_out(const StepPlan& plan, const ModelFacts& model, const BlockTables& tables, int64_t page_size,
             const std::vector<bool>& hidden_rows, StepLayout& layout) {
  layout.token_ids.clear();
  layout.state_slots.clear();
  bool any_plan = false;
  for (const auto& s : plan.sequences) {
    const auto ids = s.tokens.subspan(static_cast<size_t>(s.start), static_cast<size_t>(s.num_rows));
    layout.token_ids.insert(layout.token_ids.end(), ids.begin(), ids.end());
    layout.state_slots.push_back(s.state_slot);
    any_plan = any_plan || s.row_plan != nullptr;
  }
  const Layouter layouter(plan, model, tables, page_size);
  layout.num_sets = 0;
  RowSetLayout& batch = next_set(layout);
  batch.kept.clear();
  batch.is_replay = false;
  layouter.fill(batch, 0, [&](size_t i) { return Cut{plan.sequences[i].start, 0}; });
  layout.set_of_layer.assign(model.layers.size(), 0);
  if (any_plan) lay_out_narrower_sets(plan, model, layouter, layout);
  choose_outputs(plan, hidden_rows, layout);
}

}  // namespace reprise
