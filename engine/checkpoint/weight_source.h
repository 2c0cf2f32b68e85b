#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace reprise {

// Where a model takes its weights from, by their released names ("layers.0.attn.wq_a.weight"). A model takes or skips
// every tensor it knows and then calls finish(), which reports everything that did not fit at once.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual bool has(const std::string& name) const = 0;

  // Fills `destination` (contiguous, float32 or bfloat16) with tensor `name`, dequantized where a `.scale` stands
  // beside it, and marks it as used. The stored shape must be destination's; a packed FP4 weight counts as its unpacked
  // shape. A tensor that is missing or has another shape is noted for finish(), and `destination` keeps what it held.
  virtual void take_into(const std::string& name, const at::Tensor& destination) = 0;

  // The same into a fresh tensor that owns its memory. Its values are arbitrary where finish() is going to throw.
  virtual at::Tensor take(const std::string& name, at::IntArrayRef shape, at::ScalarType dtype) = 0;

  // Marks a known tensor that this model does not need; it may be absent.
  virtual void skip(const std::string& name) = 0;

  // Throws std::invalid_argument that lists all missing, mis-shaped and unknown tensors.
  virtual void finish() = 0;
};

}  // namespace reprise
