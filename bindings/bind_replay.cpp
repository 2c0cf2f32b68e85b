#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "instance_attribute.h"
#include "python_context.h"
#include "reprise/decoder_replay_layers.h"
#include "reprise/error.h"
#include "tensor_caster.h"

namespace nb = nanobind;

namespace reprise {
namespace {

using States = DecoderReplayLayers::States;

at::Tensor to_tensor(nb::handle object, const char* what) {
  at::Tensor tensor;
  if (!tensor_from_python(object.ptr(), tensor)) {
    throw nb::type_error(concat("[DecoderReplayLayers] wanted ", what, " but got ",
                                nb::cast<std::string>(nb::str(object.type().attr("__name__"))))
                             .c_str());
  }
  return tensor;
}

at::Tensor to_optional_tensor(nb::handle object, const char* what) {
  return object.is_none() ? at::Tensor() : to_tensor(object, what);
}

nb::tuple to_tuple(const States& states) {
  nb::list items;
  for (const at::Tensor& state : states) items.append(nb::cast(state));
  return nb::tuple(items);
}

// The Python class. Its attributes (window, run_layers, row_buffers, rows, forward_context) are plain instance
// attributes that every call reads once: any may be replaced between calls, and Python's collector sees through them.
// C++ holds only what lasts from call to call.
class PythonReplayLayers {
 public:
  explicit PythonReplayLayers(int64_t window) : layers_(window, [](const States&) { return States(); }, {}) {}

  enum class Form { kScattered, kKept };
  nb::object call(nb::handle self, nb::handle hidden_states, const nb::args& states, Form form) const;

 private:
  DecoderReplayLayers layers_;
};

nb::object PythonReplayLayers::call(nb::handle self, nb::handle hidden_states, const nb::args& states,
                                    Form form) const {
  const nb::object run_layers = self.attr("run_layers");
  const nb::object rows = self.attr("rows");
  if (rows.is_none()) return run_layers(hidden_states, *states);

  States inputs = {to_tensor(hidden_states, "hidden_states as a tensor")};
  for (nb::handle state : states) inputs.push_back(to_optional_tensor(state, "every state as a tensor or None"));
  States row_buffers;
  for (nb::handle buffer : self.attr("row_buffers")) row_buffers.push_back(to_tensor(buffer, "row buffers as tensors"));

  bool is_single = false;
  DecoderReplayLayers layers = layers_;
  layers.rows = to_tensor(rows, "rows as a tensor or None");
  layers.forward_context = context_from_python(self.attr("forward_context"));
  layers.set_row_buffers(std::move(row_buffers));
  layers.set_run_layers([&run_layers, &is_single](const States& gathered) {
    const nb::gil_scoped_acquire gil;
    const nb::object result = run_layers(*to_tuple(gathered));
    if (at::Tensor tensor; tensor_from_python(result.ptr(), tensor)) {
      is_single = true;
      return States{std::move(tensor)};
    }
    if (!nb::isinstance<nb::tuple>(result) && !nb::isinstance<nb::list>(result)) {
      to_tensor(result, "run_layers to return a tuple of tensors");
    }
    States outputs;
    for (nb::handle output : result) outputs.push_back(to_optional_tensor(output, "run_layers to return tensors"));
    return outputs;
  });
  States outputs;
  {
    const nb::gil_scoped_release no_gil;
    outputs = form == Form::kScattered ? layers(inputs) : layers.run_kept(inputs);
  }
  return is_single ? nb::cast(outputs.front()) : nb::object(to_tuple(outputs));
}

void init_replay_layers(nb::pointer_and_handle<PythonReplayLayers> self, int64_t window, const nb::object& run_layers,
                        const nb::object& row_buffers) {
  if (!PyCallable_Check(run_layers.ptr())) {
    throw nb::type_error("[DecoderReplayLayers] wanted run_layers to be callable");
  }
  for (nb::handle buffer : row_buffers) to_tensor(buffer, "row buffers as tensors");
  std::construct_at(self.p, window);
  nb::setattr(self.h, "window", nb::int_(window));
  nb::setattr(self.h, "run_layers", run_layers);
  nb::setattr(self.h, "row_buffers", row_buffers);
  nb::setattr(self.h, "rows", nb::none());
  nb::setattr(self.h, "forward_context", nb::none());
}

constexpr const char* kClassDoc = R"(Runs the replay layers on the rows a step keeps.

Attributes, all of which may be replaced between calls:
  window: rows of each request that the replay keeps.
  run_layers: takes a batch's layer inputs and returns its per-row outputs, a tuple of tensors; one tensor that is
    returned alone comes back alone.
  row_buffers: per-row results that later layers read; each call compacts them in place to their first len(rows) rows.
  rows: 1-D int32 or int64 tensor of the batch rows to keep, in any order; None runs the layers on the whole batch.
  forward_context: what is current while run_layers runs on the kept rows.)";

constexpr const char* kCallDoc = R"(Gathers the inputs by `rows`, runs the layers, scatters their outputs to batch rows.

Trimmed rows are zero; a repeated row holds its last output (on a GPU any of them); the outputs are fresh. IndexError for a
row outside the batch, before anything is written; ValueError for an output without one row per kept row.)";

constexpr const char* kRunKeptDoc = R"(The same without the scatter: the outputs as run_layers returns them.

Where the rows are one run of consecutive rows, run_layers gets views of the inputs: what it changes in place changes them.)";

}  // namespace

void bind_replay(nb::module_& m) {
  using Form = PythonReplayLayers::Form;
  const auto call_as = [](Form form) {
    return [form](nb::handle self, nb::handle hidden_states, const nb::args& states) {
      return nb::cast<const PythonReplayLayers&>(self).call(self, hidden_states, states, form);
    };
  };
  nb::class_<PythonReplayLayers> layers(m, "DecoderReplayLayers", nb::dynamic_attr(), nb::is_weak_referenceable(),
                                        kClassDoc);
  def_instance_attribute(layers, "window", "int");
  def_instance_attribute(layers, "run_layers", "typing.Callable[..., typing.Any]");
  def_instance_attribute(layers, "row_buffers", "typing.Iterable[torch.Tensor]");
  def_instance_attribute(layers, "rows", "torch.Tensor | None");
  def_instance_attribute(layers, "forward_context", "typing.Any");
  layers.def("__init__", &init_replay_layers, nb::arg("window"), nb::arg("run_layers").none(), nb::arg("row_buffers"))
      .def("__call__", call_as(Form::kScattered), nb::arg("hidden_states"), nb::arg("states"),
           nb::sig("def __call__(self, hidden_states: torch.Tensor, *states: torch.Tensor | None) -> "
                   "tuple[torch.Tensor, ...]"),
           kCallDoc)
      .def("run_kept", call_as(Form::kKept), nb::arg("hidden_states"), nb::arg("states"),
           nb::sig("def run_kept(self, hidden_states: torch.Tensor, *states: torch.Tensor | None) -> "
                   "tuple[torch.Tensor, ...]"),
           kRunKeptDoc);
}

}  // namespace reprise
