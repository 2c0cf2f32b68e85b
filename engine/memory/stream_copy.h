#pragma once

#include <cstddef>

namespace reprise {

// std::memcpy past the cache, for copies too large to stay in it until they are read: where the CPU can, the target's
// lines are written without being fetched first.
void stream_copy(void* to, const void* from, size_t bytes);

}  // namespace reprise
