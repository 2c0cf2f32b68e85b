#include <nanobind/nanobind.h>

#include "bindings.h"
#include "tensor_caster.h"

NB_MODULE(_reprise, m) {
  // Loads libtorch, and the Python tensor class that the caster needs.
  nanobind::module_::import_("torch");
  reprise::register_torch_errors();
  reprise::bind_checkpoint(m);
  reprise::bind_context(m);
  reprise::bind_replay(m);
  reprise::bind_engine(m);
  reprise::bind_engine_loop(m);
  reprise::bind_step_plan(m);
  reprise::bind_model_state(m);
}
