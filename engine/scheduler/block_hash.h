#pragma once

#include <cstdint>
#include <span>

namespace reprise {

// Identity of a block of tokens together with everything before it: the hash of its tokens chained to its parent's.
struct BlockHash {
  uint64_t low = 0;
  uint64_t high = 0;

  friend bool operator==(const BlockHash&, const BlockHash&) = default;
};

// What the first block of a request is chained to. `seed` keeps whoever does not know it from making prompts whose
// blocks collide; `salt` stands for whatever else changes KV.
BlockHash root_hash(uint64_t seed, uint64_t salt);
BlockHash hash_block(const BlockHash& parent, std::span<const int32_t> tokens);

}  // namespace reprise
