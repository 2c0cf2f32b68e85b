#include "scheduler/block_hash.h"

namespace reprise {
namespace {

constexpr uint64_t kLow = 0x9E3779B97F4A7C15u;
constexpr uint64_t kHigh = 0xC2B2AE3D27D4EB4Fu;

// Two independent 64-bit lanes of multiply and xor-shift over words of two tokens: about a nanosecond a token.
void absorb(BlockHash& hash, uint64_t word) {
  hash.low = (hash.low ^ word) * kLow;
  hash.low ^= hash.low >> 29;
  hash.high = (hash.high + word) * kHigh;
  hash.high ^= hash.high >> 32;
}

uint64_t finish(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDu;
  x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53u;
  return x ^ (x >> 33);
}

}  // namespace

BlockHash root_hash(uint64_t seed, uint64_t salt) {
  BlockHash hash{kHigh, kLow};
  absorb(hash, seed);
  absorb(hash, salt);
  return {finish(hash.low), finish(hash.high)};
}

BlockHash hash_block(const BlockHash& parent, std::span<const int32_t> tokens) {
  BlockHash hash = parent;
  size_t i = 0;
  for (; i + 1 < tokens.size(); i += 2) {
    absorb(hash, static_cast<uint32_t>(tokens[i]) | static_cast<uint64_t>(static_cast<uint32_t>(tokens[i + 1])) << 32);
  }
  if (i < tokens.size()) absorb(hash, static_cast<uint32_t>(tokens[i]));
  return {finish(hash.low), finish(hash.high)};
}

}  // namespace reprise
