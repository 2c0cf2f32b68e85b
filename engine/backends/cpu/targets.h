#pragma once

// A function compiled once per x86-64 level; the loader picks the best one the CPU has. Sanitizers cannot instrument
// the resolvers, which run before their runtime is up.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__) && !defined(REPRISE_NO_CLONES)
#define REPRISE_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define REPRISE_CLONES
#endif

// Hot elementwise functions must land inside their caller, so that they are compiled for the caller's instruction set.
#define REPRISE_INLINE inline __attribute__((always_inline))
