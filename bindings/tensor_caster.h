#pragma once

#include <ATen/core/Tensor.h>
#include <nanobind/nanobind.h>

namespace reprise {

// Borrows the tensor behind a Python object; false when it is no torch.Tensor.
bool tensor_from_python(PyObject* object, at::Tensor& tensor) noexcept;
// A new reference to the tensor's Python object; None for an undefined tensor, null with a Python error set on failure.
PyObject* tensor_to_python(const at::Tensor& tensor) noexcept;
// Lets errors from libtorch arrive as the Python errors that torch itself raises, without C++ stack traces.
void register_torch_errors();

}  // namespace reprise

namespace nanobind::detail {

// torch.Tensor <-> at::Tensor, sharing the data. Take std::optional<at::Tensor> where None is allowed.
template <>
struct type_caster<at::Tensor> {
  NB_TYPE_CASTER(at::Tensor, const_name("torch.Tensor"))

  bool from_python(handle source, uint32_t, cleanup_list*) noexcept {
    return reprise::tensor_from_python(source.ptr(), value);
  }
  static handle from_cpp(const at::Tensor& tensor, rv_policy, cleanup_list*) noexcept {
    return reprise::tensor_to_python(tensor);
  }
};

}  // namespace nanobind::detail
