#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bindings.h"
#include "instance_attribute.h"
#include "python_context.h"
#include "reprise/forward_context.h"
#include "tensor_caster.h"

namespace nb = nanobind;

namespace reprise {
namespace {

// A context that is some Python object of the caller's own. Python owns it, so the object is released under the GIL.
class ForeignForwardContext : public ForwardContext {
 public:
  explicit ForeignForwardContext(nb::object object) : object(std::move(object)) {}
  nb::object object;
};

// The fields that engines with this helper set, with the kind of default each takes.
enum class Default { kNone, kDict, kZero, kFalse };
struct Field {
  const char* name;
  Default value;
};
constexpr Field kFields[] = {
    {"no_compile_layers", Default::kDict}, {"attn_metadata", Default::kNone},
    {"slot_mapping", Default::kDict},      {"virtual_engine", Default::kZero},
    {"dp_metadata", Default::kNone},       {"cudagraph_runtime_mode", Default::kNone},
    {"batch_descriptor", Default::kNone},  {"ubatch_slices", Default::kNone},
    {"is_padding", Default::kNone},        {"skip_compiled", Default::kFalse},
    {"all_moe_layers", Default::kNone},    {"moe_layer_index", Default::kZero},
    {"additional_kwargs", Default::kDict},
};
constexpr size_t kNumPositional = 3;

nb::object make_default(Default value) {
  switch (value) {
    case Default::kDict:
      return nb::dict();
    case Default::kZero:
      return nb::int_(0);
    case Default::kFalse:
      return nb::bool_(false);
    case Default::kNone:
      break;
  }
  return nb::none();
}

void init_context(nb::pointer_and_handle<ForwardContext> self, const nb::args& args, const nb::kwargs& fields) {
  if (args.size() > kNumPositional) {
    throw nb::type_error("ForwardContext takes at most 3 positional arguments; pass the other fields by name");
  }
  std::construct_at(self.p);
  for (const Field& field : kFields) nb::setattr(self.h, field.name, make_default(field.value));
  for (size_t i = 0; i < args.size(); ++i) {
    if (fields.contains(kFields[i].name)) {
      throw nb::type_error((std::string("ForwardContext got two values for ") + kFields[i].name).c_str());
    }
    nb::setattr(self.h, kFields[i].name, args[i]);
  }
  for (const auto& [name, value] : fields) nb::setattr(self.h, name, value);
}

nb::object current_context() {
  std::shared_ptr<ForwardContext> context = current_forward_context();
  if (context == nullptr) {
    PyErr_SetString(PyExc_AssertionError,
                    "Forward context is not set on this thread. Set one with `override_forward_context` or "
                    "`set_forward_context`.");
    throw nb::python_error();
  }
  if (const auto* foreign = dynamic_cast<const ForeignForwardContext*>(context.get())) return foreign->object;
  return nb::cast(context);
}

// Makes a context current from __enter__ to __exit__; may be entered again, also while it is current.
class OverrideForwardContext {
 public:
  explicit OverrideForwardContext(const nb::object& context) : context_(context_from_python(context)) {}
  OverrideForwardContext(const OverrideForwardContext&) = delete;
  OverrideForwardContext& operator=(const OverrideForwardContext&) = delete;

  void enter() { entered_.push_back({std::this_thread::get_id(), std::make_unique<ScopedForwardContext>(context_)}); }

  void exit(const nb::args&) {
    const auto own = std::find_if(entered_.rbegin(), entered_.rend(),
                                  [](const Entered& e) { return e.thread == std::this_thread::get_id(); });
    if (own == entered_.rend()) {
      PyErr_SetString(PyExc_RuntimeError, "override_forward_context must be left on the thread that entered it");
      throw nb::python_error();
    }
    entered_.erase(std::next(own).base());
  }

 private:
  struct Entered {
    std::thread::id thread;
    std::unique_ptr<ScopedForwardContext> scope;
  };
  std::shared_ptr<ForwardContext> context_;
  std::vector<Entered> entered_;
};

void bind_attention_metadata(nb::module_& m) {
  nb::class_<RopeRows>(m, "RopeRows", "Cosines and sines of the rotary embedding, [rows, R/2] float32 each.")
      .def_ro("cos", &RopeRows::cos)
      .def_ro("sin", &RopeRows::sin);
  nb::class_<GroupRows>(m, "GroupRows", "What rows know of one cache group.")
      .def_ro("block_table", &GroupRows::block_table, "[max_num_seqs, entries] int32")
      .def_ro("window_starts", &GroupRows::window_starts,
              "[rows] int64, first position that attention reads; None in a group without a window");
  nb::class_<CellRows>(m, "CellRows", "Where rows write KV.")
      .def_ro("slots", &CellRows::slots,
              "[rows] int64 cells of the group, 0 where nothing is written; None where no layer writes any more")
      .def_ro("rope", &CellRows::rope, "at the position of the group's first token");
  nb::class_<AttentionMetadata>(m, "AttentionMetadata",
                                "What attention and the caches know of a set of rows. Tensors are shared, not copied; "
                                "None where the context was not made by the engine.")
      .def_ro("positions", &AttentionMetadata::positions, "[rows] int64")
      .def_ro("sequence_index", &AttentionMetadata::sequence_index, "[rows] int32")
      .def_ro("sequence_starts", &AttentionMetadata::sequence_starts, "[sequences + 1] int64")
      .def_ro("state_slots", &AttentionMetadata::state_slots, "[sequences] int32 rows of the block tables")
      .def_ro("groups", &AttentionMetadata::groups, "per cache group of the model's facts")
      .def_ro("cells", &AttentionMetadata::cells, "per entry of the facts' cells")
      .def_ro("ropes", &AttentionMetadata::ropes, "per rotary embedding of the facts, at the row's position");
}

void bind_forward_context(nb::module_& m) {
  nb::class_<ForwardContext> context(
      m, "ForwardContext", nb::dynamic_attr(), nb::is_weak_referenceable(),
      "What the layers of one forward read about the rows they run on.\n\n"
      "Takes any fields by name, of any type, and keeps them as attributes; the usual ones have defaults. A context "
      "made by "
      "the engine shows its facts in `attention`, `num_rows`, `num_padding_rows` and `is_replay`.");
  context
      .def("__init__", &init_context,
           nb::sig(
               "def __init__(self, no_compile_layers: dict[str, typing.Any] = ..., attn_metadata: typing.Any = None, "
               "slot_mapping: typing.Any = ..., **fields: typing.Any) -> None"))
      .def("__copy__", [](nb::handle self) { return self.type()(**nb::borrow<nb::dict>(self.attr("__dict__"))); })
      .def_ro("attention", &ForwardContext::attention, nb::rv_policy::reference_internal)
      .def_ro("num_rows", &ForwardContext::num_rows, "rows of the batch, padding included")
      .def_ro("num_padding_rows", &ForwardContext::num_padding_rows, "at the end of the batch")
      .def_ro("is_replay", &ForwardContext::is_replay, "whether the rows are a replay batch");
  for (const Field& field : kFields) def_instance_attribute(context, field.name, "typing.Any");
  nb::class_<ForeignForwardContext, ForwardContext>(m, "_ForeignForwardContext").def(nb::init<nb::object>());
}

}  // namespace

std::shared_ptr<ForwardContext> context_from_python(nb::handle object) {
  if (object.is_none()) return nullptr;
  if (nb::isinstance<ForwardContext>(object)) return nb::cast<std::shared_ptr<ForwardContext>>(object);
  return nb::cast<std::shared_ptr<ForwardContext>>(nb::type<ForeignForwardContext>()(object));
}

void bind_context(nb::module_& m) {
  bind_attention_metadata(m);
  bind_forward_context(m);
  m.def("get_forward_context", &current_context,
        "The context that is current on this thread: the very object that was set. AssertionError when there is none.");
  m.def("is_forward_context_available", &is_forward_context_available, "Whether a context is current on this thread.");
  nb::class_<OverrideForwardContext>(m, "override_forward_context",
                                     "Context manager that makes a context current on this thread; None hides the "
                                     "outer one. What was current before is "
                                     "current again afterwards, also after an exception.")
      .def(nb::init<nb::object>(), nb::arg("forward_context").none())
      .def("__enter__", &OverrideForwardContext::enter)
      .def("__exit__", &OverrideForwardContext::exit, nb::sig("def __exit__(self, *args: typing.Any) -> None"));
}

}  // namespace reprise
