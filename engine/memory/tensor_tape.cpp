#include "memory/tensor_tape.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "reprise/error.h"

namespace reprise {

namespace {

bool is_of_kind(const at::Tensor& tensor, at::IntArrayRef sizes, const at::TensorOptions& options) {
  return tensor.sizes() == sizes && tensor.dtype() == options.dtype() && tensor.device() == options.device();
}

}  // namespace

void TensorTape::rewind() {
  recorded_ = true;
  next_ = 0;
}

at::Tensor TensorTape::empty(at::IntArrayRef sizes, const at::TensorOptions& options) {
  if (recorded_) {
    REPRISE_ENSURE(next_ < taken_.size() && is_of_kind(tensors_[taken_[next_]], sizes, options), "tensor ", next_,
                   " of shape ", sizes, " is not what the first run took");
    return tensors_[taken_[next_++]];
  }
  // A view keeps the memory but not the tensor.
  const auto free = std::find_if(tensors_.begin(), tensors_.end(), [&](const at::Tensor& tensor) {
    return tensor.use_count() == 1 && tensor.storage().use_count() == 1 && is_of_kind(tensor, sizes, options);
  });
  taken_.push_back(static_cast<size_t>(free - tensors_.begin()));
  if (free == tensors_.end()) tensors_.push_back(at::empty(sizes, options));
  return tensors_[taken_.back()];
}

}  // namespace reprise
