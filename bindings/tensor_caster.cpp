// The only file with torch's Python headers: they take half a minute to compile and bring pybind11 along.
#include "tensor_caster.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/python_variable.h>

namespace nb = nanobind;

namespace reprise {

bool tensor_from_python(PyObject* object, at::Tensor& tensor) noexcept {
  try {
    if (!THPVariable_Check(object)) return false;
    tensor = THPVariable_Unpack(object);
    return true;
  } catch (...) {  // an __instancecheck__ that raises: not a tensor
    PyErr_Clear();
    return false;
  }
}

PyObject* tensor_to_python(const at::Tensor& tensor) noexcept {
  try {
    return THPVariable_Wrap(tensor);
  } catch (const std::exception& error) {
    if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

void register_torch_errors() {
  nb::register_exception_translator([](const std::exception_ptr& raised, void*) {
    try {
      std::rethrow_exception(raised);
    } catch (const c10::IndexError& error) {
      PyErr_SetString(PyExc_IndexError, error.what_without_backtrace());
    } catch (const c10::ValueError& error) {
      PyErr_SetString(PyExc_ValueError, error.what_without_backtrace());
    } catch (const c10::TypeError& error) {
      PyErr_SetString(PyExc_TypeError, error.what_without_backtrace());
    } catch (const c10::NotImplementedError& error) {
      PyErr_SetString(PyExc_NotImplementedError, error.what_without_backtrace());
    } catch (const c10::Error& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what_without_backtrace());
    }
  });
}

}  // namespace reprise
