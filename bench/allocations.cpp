#include "allocations.h"

#include <cstdlib>
#include <new>

// In a file of their own: inlined into their callers, GCC takes malloc and free for mismatched pairs.

namespace {
int64_t count = 0;
}  // namespace

int64_t num_allocations() { return count; }

void* operator new(std::size_t size) {
  ++count;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
