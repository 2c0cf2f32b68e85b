#pragma once

#include <nanobind/nanobind.h>

namespace reprise {

void bind_checkpoint(nanobind::module_& m);
void bind_context(nanobind::module_& m);
void bind_replay(nanobind::module_& m);
void bind_engine(nanobind::module_& m);
void bind_engine_loop(nanobind::module_& m);
void bind_step_plan(nanobind::module_& m);
void bind_model_state(nanobind::module_& m);

}  // namespace reprise
