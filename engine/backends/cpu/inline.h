#pragma once

// Hot elementwise functions must land inside their caller, so that they are compiled for the caller's instruction set.
#define REPRISE_INLINE inline __attribute__((always_inline))
