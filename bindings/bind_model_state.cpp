#include <ATen/ops/empty.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>
#include <vector>

#include "bindings.h"
#include "planned_sequence.h"
#include "reprise/model_state.h"
#include "tensor_caster.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace reprise {
namespace {

at::Tensor to_tensor(const RowRuns& rows) {
  at::Tensor tensor = at::empty({rows.num_rows()}, at::kLong);
  int64_t* row = tensor.mutable_data_ptr<int64_t>();
  for (const RowRun& run : rows.runs()) {
    for (int64_t i = 0; i < run.count; ++i) *row++ = run.from + i;
  }
  return tensor;
}

struct KeptRows {
  at::Tensor rows;
  std::shared_ptr<ForwardContext> forward_context;
};

std::vector<KeptRows> kept_rows_of_layers(const StepInputs& inputs) {
  std::vector<KeptRows> layers(inputs.set_of_layer.size());
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const int32_t index = inputs.set_of_layer[layer];
    if (index == 0) continue;
    const int32_t received = inputs.received_set(static_cast<int64_t>(layer));
    const RowSet& set = inputs.sets[static_cast<size_t>(index)];
    layers[layer].forward_context = set.forward_context;
    const int64_t num_received = inputs.sets[static_cast<size_t>(received)].forward_context->num_rows;
    if (index != received && set.kept.num_rows() < num_received) layers[layer].rows = to_tensor(set.kept);
  }
  return layers;
}

}  // namespace

void bind_model_state(nb::module_& m) {
  nb::class_<KeptRows>(
      m, "KeptRows",
      "The rows that a layer computes of those it received: what DecoderReplayLayers takes as rows and "
      "forward_context.")
      .def_ro("rows", &KeptRows::rows, "[kept] int64 rows of what the layer received; None = all of them")
      .def_ro("forward_context", &KeptRows::forward_context, "None = the context stays as it is");
  nb::class_<StepInputs>(m, "StepInputs", "What a model's forward takes.")
      .def_ro("token_ids", &StepInputs::token_ids, "[rows] int64")
      .def_ro("engram_rows", &StepInputs::engram_rows, "per Engram layer [rows, tables] int64")
      .def_prop_ro(
          "forward_context", [](const StepInputs& self) { return self.forward_context(); }, "the whole batch's")
      .def_prop_ro("layers", &kept_rows_of_layers, "KeptRows of every layer")
      .def_prop_ro(
          "output_rows", [](const StepInputs& self) { return to_tensor(self.output_rows); },
          "[outputs] int64 rows of the last layer's that are read")
      .def_prop_ro(
          "logits_rows", [](const StepInputs& self) { return to_tensor(self.logits_rows); },
          "[logits] int64 indices into output_rows");
  nb::class_<ModelState>(
      m, "ModelState",
      "Turns each step's plan into tensors: the batch's forward context and, where layers keep fewer rows, "
      "the kept rows with a context of their own. Holds the block tables.")
      .def(
          "prepare",
          [](ModelState& self, const PlannedStep& step, const std::vector<bool>& hidden_rows) {
            return self.prepare(step.plan(), hidden_rows);
          },
          "plan"_a, "hidden_rows"_a = std::vector<bool>(),
          "Applies the plan's block table updates and builds the step's inputs. ValueError, with nothing applied, for "
          "a plan that "
          "does not fit.")
      .def_prop_ro("page_size", &ModelState::page_size);
  nb::class_<ModelStateBuilder>(m, "ModelStateBuilder",
                                "Builds a ModelState from a model's config; each setter returns the builder.")
      .def(
          "__init__",
          [](ModelStateBuilder* self, const ModelConfig& config) { std::construct_at(self, make_model_facts(config)); },
          "config"_a)
      .def("max_num_seqs", &ModelStateBuilder::max_num_seqs, "value"_a, nb::rv_policy::reference_internal,
           "State slots; 64 by default.")
      .def("max_model_len", &ModelStateBuilder::max_model_len, "value"_a, nb::rv_policy::reference_internal,
           "Tokens per request; max_position_embeddings by default.")
      .def("page_size", &ModelStateBuilder::page_size, "value"_a, nb::rv_policy::reference_internal,
           "Tokens per cache page; 64 by default.")
      .def("engram_vocabulary", &ModelStateBuilder::engram_vocabulary, "map"_a, nb::rv_policy::reference_internal,
           "Token id -> compressed id, for models with Engram layers.")
      .def("build", &ModelStateBuilder::build, "ValueError for settings that do not fit the config.");
}

}  // namespace reprise
