#pragma once

#include <ATen/native/CPUBlas.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/BFloat16.h>

#include <vector>

#include "allocations.h"
#include "backends/block_product.h"

namespace reprise::testing {

// Notes the memory of CPU tensors too, which does not come from operator new, for its lifetime.
class CountingAllocator final : public c10::Allocator {
 public:
  CountingAllocator() : inner_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, /*priority=*/1); }
  ~CountingAllocator() override { c10::SetCPUAllocator(inner_, /*priority=*/1); }
  c10::DataPtr allocate(std::size_t bytes) override {
    note_allocation(bytes);
    return inner_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return inner_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { inner_->copy_data(to, from, bytes); }

 private:
  c10::Allocator* inner_;
};

// libtorch's product kernel makes a key on every call, and frees it: none of ours.
template <typename T>
void exempt_product_keys(c10::ScalarType dtype) {
  if (cpu::product_path(dtype) != cpu::ProductPath::kBrgemm) return;
  const std::vector<T> a(32 * 32);
  std::vector<float> c(32 * 32);
  const auto multiply = [&] {
    cpu::block_product(cpu::ProductPath::kBrgemm, 32, 32, 32, a.data(), 32, a.data(), 32, c.data(), 32);
  };
  multiply();  // the first call of a shape makes its kernel
  exempt_allocations_of(multiply);
  cpu::ProductScope scope(dtype);
}

}  // namespace reprise::testing
