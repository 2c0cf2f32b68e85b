#include "inputs/engram_hash.h"

#include <algorithm>
#include <limits>

#include "inputs/numpy_random.h"
#include "reprise/error.h"

namespace reprise {
namespace {

bool is_prime(int64_t n) {
  if (n < 4) return n >= 2;
  if (n % 2 == 0) return false;
  for (int64_t divisor = 3; divisor <= n / divisor; divisor += 2) {
    if (n % divisor == 0) return false;
  }
  return true;
}

// Every search starts at engram_vocab_size and skips the primes that earlier layers and sizes took: together they take
// consecutive primes, each layer its share in order.
std::vector<int64_t> table_primes(const EngramFacts& facts, int64_t layer_index, int64_t tables_per_layer) {
  std::vector<int64_t> primes;
  int64_t candidate = facts.vocab_size;
  for (int64_t taken = 0; taken < (layer_index + 1) * tables_per_layer; ++candidate) {
    if (!is_prime(candidate)) continue;
    if (taken >= layer_index * tables_per_layer) primes.push_back(candidate);
    ++taken;
  }
  return primes;
}

}  // namespace

EngramHash::EngramHash(const EngramFacts& facts, int64_t layer_index, int32_t pad_id)
    : num_heads_(facts.num_heads), pad_id_(pad_id) {
  const int64_t max_ngram = facts.max_ngram_size;
  REPRISE_ENSURE(layer_index >= 0 && layer_index < static_cast<int64_t>(facts.layer_ids.size()),
                 "no Engram layer of index ", layer_index);
  REPRISE_REQUIRE(max_ngram >= 2 && num_heads_ >= 1 && facts.compressed_vocab_size >= 1,
                  "[engram] wanted n-grams of 2 or more, at least one head and one compressed id but got ", max_ngram,
                  ", ", num_heads_, " and ", facts.compressed_vocab_size);
  REPRISE_REQUIRE(pad_id >= 0 && pad_id < facts.compressed_vocab_size, "[engram] wanted a compressed pad id below ",
                  facts.compressed_vocab_size, " but got ", pad_id);
  // id * multiplier stays below 2^63: hashes are never negative, and the floored modulo is the plain one.
  const int64_t bound = std::max<int64_t>(1, std::numeric_limits<int64_t>::max() / facts.compressed_vocab_size / 2);
  NumpyGenerator generator(10007 * static_cast<uint64_t>(facts.layer_ids[static_cast<size_t>(layer_index)]));
  for (int64_t i = 0; i < max_ngram; ++i) {
    multipliers_.push_back(2 * static_cast<uint64_t>(generator.integer(bound)) + 1);
  }
  primes_ = table_primes(facts, layer_index, (max_ngram - 1) * num_heads_);
  for (const int64_t prime : primes_) {
    offsets_.push_back(num_rows_);
    num_rows_ += prime;
  }
}

void EngramHash::hash(std::span<const int32_t> lookback, int64_t* rows) const {
  REPRISE_ENSURE(lookback.size() == multipliers_.size(), "a lookback of ", lookback.size(), " ids, not ",
                 multipliers_.size());
  hash_last(lookback, rows);
}

void EngramHash::hash_rows(std::span<const int32_t> compressed_ids, int64_t start, int64_t n, int64_t* rows) const {
  REPRISE_ENSURE(start >= 0 && n >= 0 && start + n <= static_cast<int64_t>(compressed_ids.size()), "rows ", start,
                 " to ", start + n, " of ", compressed_ids.size());
  for (int64_t i = 0; i < n; ++i) {
    hash_last(compressed_ids.first(static_cast<size_t>(start + i + 1)), rows + i * num_tables());
  }
}

// The last of `ids` is the token; what lies before the first is absent.
void EngramHash::hash_last(std::span<const int32_t> ids, int64_t* rows) const {
  uint64_t mixed = 0;
  bool absent = false;
  size_t table = 0;
  for (size_t distance = 0; distance < multipliers_.size(); ++distance) {
    absent = absent || distance >= ids.size() || ids[ids.size() - 1 - distance] < 0;
    const int32_t id = absent ? pad_id_ : ids[ids.size() - 1 - distance];
    mixed ^= static_cast<uint64_t>(id) * multipliers_[distance];
    if (distance == 0) continue;  // the smallest n-gram has two tokens
    for (int64_t head = 0; head < num_heads_; ++head, ++table) {
      rows[table] = offsets_[table] + static_cast<int64_t>(mixed % static_cast<uint64_t>(primes_[table]));
    }
  }
}

std::vector<EngramHash> make_engram_hashes(const EngramFacts& facts, int32_t pad_id) {
  std::vector<EngramHash> hashes;
  for (size_t i = 0; i < facts.layer_ids.size(); ++i) {
    hashes.emplace_back(facts, static_cast<int64_t>(i), pad_id);
  }
  return hashes;
}

}  // namespace reprise
