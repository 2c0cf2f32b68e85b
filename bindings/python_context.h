#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "reprise/forward_context.h"

namespace reprise {

// The C++ context of a Python object: itself for a ForwardContext, null for None; any other object is carried along and
// handed back by get_forward_context. Needs the GIL; the result may be released without it.
std::shared_ptr<ForwardContext> context_from_python(nanobind::handle object);

}  // namespace reprise
