#pragma once

#include <ATen/core/Tensor.h>

namespace reprise {

// Who gives memory, for what, and how long it holds what was written:
//   at::empty      weights, KV caches, what is made once      while somebody has the tensor
//   TensorCache    a step's results, gathered rows            the same; its memory then serves the next tensor
//   TensorTape     a CPU graph's results                      until the graph's next run
//   reuse_tensor   a step's inputs                            until their owner fills them again
//   lazy_zeros     batch rows that replay scatters to         as at::empty; pages come when they are written
//   ScratchFrame   one thread's work within a CPU kernel      until the frame ends
// TensorCache and TensorTape are sources: a kernel takes its result with empty_tensor and does not know from which.

// Where the kernels take the memory of their results from.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // A dense tensor of arbitrary contents. What is written to it holds as long as the source says.
  virtual at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options) = 0;
};

// empty_tensor on this thread takes from `source` for the lifetime of the scope.
class TensorSourceScope {
 public:
  explicit TensorSourceScope(TensorSource& source);
  ~TensorSourceScope();
  TensorSourceScope(const TensorSourceScope&) = delete;
  TensorSourceScope& operator=(const TensorSourceScope&) = delete;

 private:
  TensorSource* outer_;
};

// A dense tensor of arbitrary contents, from the source in scope; at::empty without one.
at::Tensor empty_tensor(at::IntArrayRef sizes, const at::TensorOptions& options);

}  // namespace reprise
