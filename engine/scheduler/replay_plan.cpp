#include "scheduler/replay_plan.h"

#include <algorithm>

#include "reprise/error.h"

namespace reprise {
namespace {

// Rows before a computed one whose KV the layer itself must have received.
int64_t reach_of(const LayerFacts& layer, int64_t num_rows) {
  if (!layer.owns_kv) return 0;
  return layer.window == 0 ? num_rows : layer.window - 1;
}

// A plan whose replay layers all keep rows >= first and read no window key below `floor`.
RowPlan make_uniform_plan(int64_t first, int64_t floor, const ModelFacts& facts) {
  RowPlan plan;
  plan.layers.assign(static_cast<size_t>(facts.num_layers()), LayerRows{});
  const auto encoder = static_cast<size_t>(facts.num_encoder_layers);
  // The last KV source publishes for every row but is computed only where a replay layer reads it.
  plan.layers[encoder - 1].first_computed = first;
  for (size_t layer = encoder; layer < plan.layers.size(); ++layer) plan.layers[layer] = {first, first, floor};
  return plan;
}

}  // namespace

RowPlan make_row_plan(ReplayMode mode, int64_t prompt_length, const ModelFacts& facts) {
  REPRISE_REQUIRE(facts.num_encoder_layers >= 0 && facts.num_encoder_layers <= facts.num_layers(),
                  "[make_row_plan] wanted 0 <= encoder layers <= layers but got ", facts.num_encoder_layers, " of ",
                  facts.num_layers());
  REPRISE_REQUIRE(prompt_length >= 1, "[make_row_plan] wanted a prompt of at least one token but got ", prompt_length);
  RowPlan plan;
  plan.layers.assign(static_cast<size_t>(facts.num_layers()), LayerRows{});
  const int64_t num_replay = facts.num_replay_layers();
  if (num_replay == 0 || facts.num_encoder_layers == 0) return plan;

  const int64_t last_row = prompt_length - 1;
  switch (mode) {
    case ReplayMode::kOff:
    case ReplayMode::kStep:
      return plan;
    case ReplayMode::kBounded: {
      const int64_t first = std::max<int64_t>(prompt_length - std::max<int64_t>(facts.window(), 1), 0);
      plan = make_uniform_plan(first, first, facts);
      // The last layer's outputs are read where a token is sampled; its other rows only leave window KV.
      plan.layers.back().first_computed = last_row;
      return plan;
    }
    case ReplayMode::kExact: {
      // Each layer reaches W-1 rows further back than the one after it, counted from the prompt's last row.
      int64_t first = last_row;
      for (int64_t layer = facts.num_layers() - 1; layer >= facts.num_encoder_layers; --layer) {
        LayerRows& rows = plan.layers[static_cast<size_t>(layer)];
        rows.first_computed = first;
        first = std::max<int64_t>(first - reach_of(facts.layers[static_cast<size_t>(layer)], prompt_length), 0);
        rows.first_received = first;
      }
      plan.layers[static_cast<size_t>(facts.num_encoder_layers - 1)].first_computed = first;
      return plan;
    }
    case ReplayMode::kLastRow:
      REPRISE_REQUIRE(!facts.replay_layers_own_kv(),
                      "[make_row_plan] replay mode last_row wants replay layers that own no KV; use exact or bounded");
      return make_uniform_plan(last_row, 0, facts);
  }
  REPRISE_ENSURE(false, "unknown replay mode ", static_cast<int>(mode));
}

RowPlan make_step_row_plan(int64_t start, int64_t num_rows, const ModelFacts& facts) {
  const int64_t window = std::max<int64_t>(facts.window(), 1);
  if (num_rows <= window || facts.num_replay_layers() == 0 || facts.num_encoder_layers == 0) {
    RowPlan plan;
    plan.layers.assign(static_cast<size_t>(facts.num_layers()), LayerRows{});
    return plan;
  }
  const int64_t first = start + num_rows - window;
  return make_uniform_plan(first, first, facts);
}

std::optional<RowPlan> make_hit_row_plan(ReplayMode mode, int64_t prompt_length, int64_t hit, PrefixRebuild rebuild,
                                         const ModelFacts& facts) {
  REPRISE_ENSURE(mode != ReplayMode::kStep && rebuild != PrefixRebuild::kAuto && hit >= 0 && hit < prompt_length,
                 "hit ", hit, " of a prompt of ", prompt_length);
  const bool bounded = rebuild == PrefixRebuild::kBounded;
  const int64_t floor = bounded ? hit - facts.window() : 0;
  if (bounded && floor <= 0) return std::nullopt;

  RowPlan plan = make_row_plan(mode, prompt_length, facts);
  int64_t layer = facts.num_layers() - 1;
  int64_t first_computed = hit;
  if (mode != ReplayMode::kOff && facts.num_encoder_layers > 0 && facts.num_replay_layers() > 0) {
    for (; layer >= facts.num_encoder_layers; --layer) {
      LayerRows& rows = plan.layers[static_cast<size_t>(layer)];
      rows = {std::max(rows.first_received, floor), std::max(rows.first_computed, floor),
              std::max(rows.window_floor, floor)};
      first_computed = rows.first_received;
    }
  }
  for (; layer >= 0; --layer) {
    // Rows >= hit are received everywhere, also where nothing reads their output: they publish KV.
    const LayerFacts& own = facts.layers[static_cast<size_t>(layer)];
    const int64_t reach = own.kv_is_cacheable ? 0 : reach_of(own, prompt_length);
    const int64_t first_received = std::min(hit, std::max({floor, first_computed - reach, int64_t{0}}));
    plan.layers[static_cast<size_t>(layer)] = {first_received, first_computed, floor};
    first_computed = first_received;
  }
  if (plan.layers.front().first_received <= 0) return std::nullopt;
  return plan;
}

bool trims_nothing(const RowPlan& plan) {
  return std::all_of(plan.layers.begin(), plan.layers.end(), [](const LayerRows& rows) { return rows == LayerRows{}; });
}

int64_t count_rows(int64_t first, int64_t start, int64_t num_rows) {
  return std::max<int64_t>(start + num_rows - std::max(start, first), 0);
}

int64_t count_received(const RowPlan* plan, int64_t layer, int64_t start, int64_t num_rows) {
  return plan == nullptr ? num_rows
                         : count_rows(plan->layers[static_cast<size_t>(layer)].first_received, start, num_rows);
}

int64_t count_computed(const RowPlan* plan, int64_t layer, int64_t start, int64_t num_rows) {
  return plan == nullptr ? num_rows
                         : count_rows(plan->layers[static_cast<size_t>(layer)].first_computed, start, num_rows);
}

}  // namespace reprise
