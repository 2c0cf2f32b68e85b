#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

// What a test's process has taken from operator new so far, and whatever else it notes. The test's target links
// allocations.cpp, which replaces the operator.
namespace reprise::testing {

int64_t num_allocations();
int64_t allocated_bytes();
void note_allocation(std::size_t bytes);

// Allocations of the sizes that `work` makes count no more.
void exempt_allocations_of(const std::function<void()>& work);

}  // namespace reprise::testing
