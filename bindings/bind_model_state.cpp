#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <utility>
#include <vector>

#include "bindings.h"
#include "planned_sequence.h"
#include "reprise/model_state.h"
#include "tensor_caster.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace reprise {

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
      .def_ro("forward_context", &StepInputs::forward_context, "the whole batch's")
      .def_ro("layers", &StepInputs::layers, "KeptRows of every layer")
      .def_ro("output_rows", &StepInputs::output_rows, "[outputs] int64 rows of the last layer's that are read")
      .def_ro("logits_rows", &StepInputs::logits_rows, "[logits] int64 indices into output_rows");
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
      .def_prop_ro("config", &ModelState::config, nb::rv_policy::reference_internal)
      .def_prop_ro("page_size", &ModelState::page_size);
  nb::class_<ModelStateBuilder>(m, "ModelStateBuilder",
                                "Builds a ModelState from a model's config; each setter returns the builder.")
      .def(nb::init<ModelConfig>(), "config"_a)
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
