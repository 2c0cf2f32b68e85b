#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace reprise {

struct Kernels;

// Weights [out, in] of one shape and dtype (float32 or bfloat16), stored for products in the room that packed them: one
// stack, mostly of a single weight. A value whose copies share memory; only its room knows how it is laid out.
class PackedWeight {
 public:
  PackedWeight() = default;
  // Packs a dense weight [out, in] or a stack [count, out, in].
  explicit PackedWeight(const at::Tensor& weights);
  // Room for `count` weights like `weight` [out, in]: arbitrary values until pack() has filled each.
  PackedWeight(int64_t count, const at::Tensor& like);
  void pack(int64_t index, const at::Tensor& weight) const;

  int64_t count() const { return count_; }
  int64_t out_features() const { return out_; }
  int64_t in_features() const { return in_; }
  at::ScalarType dtype() const { return values_.scalar_type(); }
  bool defined() const { return values_.defined(); }

  // For the room: [count, out * in] as it laid them out. Throws std::logic_error for any other.
  const at::Tensor& values(const Kernels& room) const;

 private:
  const Kernels* room_ = nullptr;
  int64_t count_ = 0;
  int64_t out_ = 0;
  int64_t in_ = 0;
  at::Tensor values_;
};

// y = x W^T, as float32 or bfloat16. Each weight of a stack multiplies columns of its own: x [rows, count * in] (the
// weight's dtype, last dimension dense) -> [rows, count * out].
at::Tensor linear(const at::Tensor& x, const PackedWeight& weight, at::ScalarType out_dtype);

}  // namespace reprise
