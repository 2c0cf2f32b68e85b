#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bindings.h"
#include "planned_sequence.h"
#include "reprise/model_facts.h"
#include "reprise/step_plan.h"
#include "scheduler/replay_plan.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace reprise {
namespace {

void init_sequence(PlannedSequence* self, std::vector<int32_t> tokens, RequestId id, int32_t state_slot,
                   std::optional<int64_t> prompt_length, int64_t start, std::optional<int32_t> num_rows,
                   int64_t publish_from, std::optional<int32_t> first_logits_row, bool samples,
                   std::shared_ptr<const RowPlan> row_plan) {
  const auto length = static_cast<int64_t>(tokens.size());
  ScheduledSequence sequence;
  sequence.id = id;
  sequence.state_slot = state_slot;
  sequence.prompt_length = prompt_length.value_or(length);
  sequence.start = start;
  sequence.num_rows = num_rows.value_or(static_cast<int32_t>(length - start));
  sequence.publish_from = publish_from;
  sequence.first_logits_row = first_logits_row.value_or(sequence.num_rows - 1);
  sequence.samples = samples;
  sequence.row_plan = std::move(row_plan);
  std::construct_at(self, std::move(sequence), std::move(tokens));
}

void bind_row_plan(nb::module_& m) {
  nb::class_<LayerRows>(m, "LayerRows", "Which rows of one request a layer takes part in, as token positions.")
      .def(nb::init<int64_t, int64_t, int64_t>(), "first_received"_a = 0, "first_computed"_a = 0, "window_floor"_a = 0)
      .def_ro("first_received", &LayerRows::first_received, "rows from it on enter: their window KV is written")
      .def_ro("first_computed", &LayerRows::first_computed, "rows from it on get an output")
      .def_ro("window_floor", &LayerRows::window_floor, "window attention reads no key below it")
      .def("__eq__", [](const LayerRows& a, const LayerRows& b) { return a == b; }, nb::is_operator());
  nb::class_<RowPlan>(m, "RowPlan", "One request's rows per layer; a layer receives what the one before it computed.")
      .def(
          "__init__", [](RowPlan* self, std::vector<LayerRows> layers) { std::construct_at(self, std::move(layers)); },
          "layers"_a)
      .def_ro("layers", &RowPlan::layers);
  m.def(
      "make_row_plan",
      [](ReplayMode mode, int64_t prompt_length, const ModelConfig& config) {
        return make_row_plan(mode, prompt_length, make_model_facts(config));
      },
      "mode"_a, "prompt_length"_a, "config"_a,
      "The rows that each layer receives and computes for a prompt, whatever its chunks.");
  m.def(
      "make_step_row_plan",
      [](int64_t start, int64_t num_rows, const ModelConfig& config) {
        return make_step_row_plan(start, num_rows, make_model_facts(config));
      },
      "start"_a, "num_rows"_a, "config"_a,
      "The same where the replay layers keep the last min(window, num_rows) rows of each step's share of a prompt.");
}

}  // namespace

void bind_step_plan(nb::module_& m) {
  bind_row_plan(m);
  nb::class_<BlockTableUpdate>(
      m, "BlockTableUpdate",
      "Entry `index` of a request's row of a cache group's block table becomes `page`; page 0 is the pad page.")
      .def(nb::init<int32_t, int32_t, int32_t, int32_t>(), "group"_a, "state_slot"_a, "index"_a, "page"_a)
      .def_ro("group", &BlockTableUpdate::group, "index of the cache group; DeepSeek-V4.1: 0 window, 1 compressed")
      .def_ro("state_slot", &BlockTableUpdate::state_slot)
      .def_ro("index", &BlockTableUpdate::index)
      .def_ro("page", &BlockTableUpdate::page);
  nb::class_<PlannedSequence>(m, "ScheduledSequence",
                              "One request's share of a step: rows [start, start + num_rows) of its tokens.")
      .def("__init__", &init_sequence, "tokens"_a, nb::kw_only(), "id"_a = 0, "state_slot"_a = 0,
           "prompt_length"_a = nb::none(), "start"_a = 0, "num_rows"_a = nb::none(), "publish_from"_a = 0,
           "first_logits_row"_a = nb::none(), "samples"_a = false, "row_plan"_a.none() = nb::none(),
           "All of the request's tokens so far, prompt first. By default they are its prompt, all rows from `start` on "
           "run, and "
           "the last row's logits are read.")
      .def_prop_ro("tokens", &PlannedSequence::tokens)
      .def_prop_ro("id", [](const PlannedSequence& s) { return s.sequence().id; })
      .def_prop_ro("state_slot", [](const PlannedSequence& s) { return s.sequence().state_slot; })
      .def_prop_ro("prompt_length", [](const PlannedSequence& s) { return s.sequence().prompt_length; })
      .def_prop_ro("start", [](const PlannedSequence& s) { return s.sequence().start; })
      .def_prop_ro("num_rows", [](const PlannedSequence& s) { return s.sequence().num_rows; })
      .def_prop_ro("publish_from", [](const PlannedSequence& s) { return s.sequence().publish_from; })
      .def_prop_ro("first_logits_row", [](const PlannedSequence& s) { return s.sequence().first_logits_row; })
      .def_prop_ro("samples", [](const PlannedSequence& s) { return s.sequence().samples; })
      .def_prop_ro("row_plan", [](const PlannedSequence& s) { return s.sequence().row_plan; });
  nb::class_<PlannedStep>(
      m, "StepPlan", "What one step runs: sequences, whose rows make the batch in this order, after table updates.")
      .def(
          "__init__",
          [](PlannedStep* self, std::vector<PlannedSequence> sequences, std::vector<BlockTableUpdate> updates) {
            std::construct_at(self, std::move(sequences), std::move(updates));
          },
          "sequences"_a, "block_table_updates"_a = std::vector<BlockTableUpdate>())
      .def_ro("sequences", &PlannedStep::sequences)
      .def_ro("block_table_updates", &PlannedStep::block_table_updates)
      .def_prop_ro("num_rows", [](const PlannedStep& step) { return step.plan().num_rows; });
}

}  // namespace reprise
