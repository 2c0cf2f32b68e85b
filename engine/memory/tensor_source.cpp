#include "memory/tensor_source.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace reprise {

namespace {

thread_local TensorSource* current_source = nullptr;

}  // namespace

TensorSourceScope::TensorSourceScope(TensorSource& source) : outer_(std::exchange(current_source, &source)) {}
TensorSourceScope::~TensorSourceScope() { current_source = outer_; }

at::Tensor empty_tensor(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return current_source == nullptr ? at::empty(sizes, options) : current_source->empty(sizes, options);
}

}  // namespace reprise
