#include "memory/reused_tensor.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

namespace reprise {

namespace {

bool serves_again(const at::Tensor& tensor, at::ScalarType dtype) {
  if (!tensor.defined() || !tensor.is_cpu() || tensor.scalar_type() != dtype || !tensor.is_contiguous()) return false;
  // Outside inference mode a tensor made within it cannot be changed.
  if (tensor.is_inference() != c10::InferenceMode::is_enabled()) return false;
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1 && tensor.storage().resizable();
}

}  // namespace

void reuse_tensor(at::Tensor& tensor, at::IntArrayRef sizes, at::ScalarType dtype) {
  if (!serves_again(tensor, dtype)) {
    tensor = at::empty(sizes, at::TensorOptions().dtype(dtype));
  } else if (tensor.sizes() != sizes) {
    tensor.resize_(sizes);
  }
}

}  // namespace reprise
