#pragma once

#include <cstdint>

// Calls of operator new so far, by the one thread of a benchmark.
int64_t num_allocations();
