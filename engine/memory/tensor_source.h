#pragma once

#include <ATen/core/Tensor.h>

namespace reprise {

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
