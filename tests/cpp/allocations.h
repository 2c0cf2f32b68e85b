#pragma once

#include <cstdint>
#include <functional>

// What a test's process has taken from malloc and its kin so far, and with it from operator new and for tensors. The
// test's target links allocations.cpp, which stands in their place.
namespace reprise::testing {

int64_t num_allocations();
int64_t allocated_bytes();

// Allocations of the sizes that `work` makes count no more, wherever they are made.
void exempt_allocations_of(const std::function<void()>& work);

}  // namespace reprise::testing
