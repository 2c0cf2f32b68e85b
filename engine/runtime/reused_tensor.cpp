#include "runtime/reused_tensor.h"

#include <ATen/ops/empty.h>

namespace reprise {

void reuse_tensor(at::Tensor& tensor, at::IntArrayRef sizes, at::ScalarType dtype) {
  const bool is_ours = tensor.defined() && tensor.use_count() == 1 && tensor.storage().use_count() == 1;
  if (is_ours && tensor.scalar_type() == dtype) {
    if (tensor.sizes() != sizes) tensor.resize_(sizes);
  } else {
    tensor = at::empty(sizes, at::TensorOptions().dtype(dtype));
  }
}

}  // namespace reprise
