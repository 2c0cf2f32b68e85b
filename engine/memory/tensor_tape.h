#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "memory/tensor_source.h"

namespace reprise {

// The tensors of work that always takes the same ones in the same order and lets go of them at the same points: its
// first run records them, and every later run is given the very same tensors, so that it takes no memory for them. A
// tensor that the first run has let go of serves again where another one of its kind is wanted. What a run writes holds
// until the next one, also where somebody keeps the tensor.
class TensorTape final : public TensorSource {
 public:
  // Before every run but the first: what that one took is on the tape.
  void rewind();

  // Throws std::logic_error where a run wants another tensor than the first one did.
  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options) override;

 private:
  std::vector<at::Tensor> tensors_;  // of memory of their own
  std::vector<size_t> taken_;        // which of them each call got, in order
  size_t next_ = 0;                  // call of the run under way
  bool recorded_ = false;
};

}  // namespace reprise
