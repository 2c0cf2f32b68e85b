#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reprise/model_facts.h"

namespace reprise {

// Which rows of an Engram layer's embedding a token looks up: one per n-gram size (2..max) and head, by hashing the
// compressed ids of the last tokens.
class EngramHash {
 public:
  // Stands in a lookback for a position that no n-gram may see (before the request's start, an image).
  static constexpr int32_t kAbsent = -1;

  // layer_index counts within facts.layer_ids; pad_id is the compressed id of facts.pad_token_id.
  EngramHash(const EngramFacts& facts, int64_t layer_index, int32_t pad_id);

  int64_t num_tables() const { return static_cast<int64_t>(primes_.size()); }  // rows per token
  int64_t num_rows() const { return num_rows_; }                               // of the embedding
  int64_t max_ngram_size() const { return static_cast<int64_t>(multipliers_.size()); }

  // lookback: [max_ngram_size] compressed ids of tokens t-max+1..t, in that order. An absent id, and every id before
  // it, counts as pad. Writes [num_tables] embedding rows, n-gram size by size, head by head.
  void hash(std::span<const int32_t> lookback, int64_t* rows) const;

  // Tokens start..start+n-1 of a request whose compressed ids begin at its position 0. Writes [n, num_tables].
  void hash_rows(std::span<const int32_t> compressed_ids, int64_t start, int64_t n, int64_t* rows) const;

 private:
  void hash_last(std::span<const int32_t> ids, int64_t* rows) const;

  int64_t num_heads_;
  int32_t pad_id_;
  std::vector<uint64_t> multipliers_;  // [max_ngram_size], by distance from t
  std::vector<int64_t> primes_;        // [num_tables] table sizes
  std::vector<int64_t> offsets_;       // [num_tables] first embedding row of each table
  int64_t num_rows_ = 0;
};

// One per facts.layer_ids, in that order.
std::vector<EngramHash> make_engram_hashes(const EngramFacts& facts, int32_t pad_id);

}  // namespace reprise
