#pragma once

#include <c10/util/BFloat16.h>

#include <vector>

#include "../allocations.h"
#include "backends/cpu/block_product.h"

namespace reprise::testing {

// libtorch's product kernel makes a key on every call, and frees it: none of ours.
template <typename T>
void exempt_product_keys(c10::ScalarType dtype) {
  if (cpu::product_path(dtype) != cpu::ProductPath::kBrgemm) return;
  const std::vector<T> a(32 * 32);
  std::vector<float> c(32 * 32);
  const cpu::ProductScope scope(dtype);
  const auto multiply = [&] {
    cpu::block_product(cpu::ProductPath::kBrgemm, 32, 32, 32, a.data(), 32, a.data(), 32, c.data(), 32);
  };
  multiply();  // the first call of a shape makes its kernel
  exempt_allocations_of(multiply);
}

}  // namespace reprise::testing
