#include "memory/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace reprise {

#ifdef __SSE2__

void stream_copy(void* to, const void* from, size_t bytes) {
  constexpr size_t kLine = 64;
  constexpr size_t kAhead = 2048;  // bytes fetched before they are read; 1 to 4 KiB measured alike
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  const size_t head = std::min(bytes, (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine);
  std::memcpy(target, source, head);
  size_t i = head;
  for (; i + kLine <= bytes; i += kLine) {
    _mm_prefetch(reinterpret_cast<const char*>(source + std::min(i + kAhead, bytes - 1)), _MM_HINT_NTA);
    const auto* line = reinterpret_cast<const __m128i*>(source + i);
    auto* out = reinterpret_cast<__m128i*>(target + i);
    const __m128i parts[] = {_mm_loadu_si128(line), _mm_loadu_si128(line + 1), _mm_loadu_si128(line + 2),
                             _mm_loadu_si128(line + 3)};
    for (int part = 0; part < 4; ++part) _mm_stream_si128(out + part, parts[part]);
  }
  std::memcpy(target + i, source + i, bytes - i);
  _mm_sfence();  // other threads see these writes in order with later ones
}

#else

void stream_copy(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

#endif

}  // namespace reprise
