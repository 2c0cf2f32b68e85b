#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "reprise/model_facts.h"

namespace reprise {

struct KvCacheConfig {
  int64_t page_size = 0;           // tokens
  std::vector<int64_t> num_pages;  // per cache group, the pad page included
  int64_t max_num_seqs = 0;
  at::ScalarType dtype{};
  bool poison = false;  // fill all cells with NaN
};

// The tensors behind the pages of the cache groups, and what layers keep of a running request beside them. Cell 0 of
// each group is the pad cell.
class KvCache {
 public:
  KvCache(const ModelFacts& model, const KvCacheConfig& config);

  int64_t page_size() const { return config_.page_size; }
  // [pages * page_size / ratio, width] of a layer that has cells of this kind (CacheTensorFacts).
  at::Tensor& cells(int32_t kind, int64_t layer) {
    return cells_.at(static_cast<size_t>(kind)).at(static_cast<size_t>(layer));
  }
  // [max_num_seqs, sizes...] float32 of a layer that has state of this kind (StateTensorFacts).
  at::Tensor& state(int32_t kind, int64_t layer) {
    return state_.at(static_cast<size_t>(kind)).at(static_cast<size_t>(layer));
  }

  bool poisons() const { return config_.poison; }
  // Fills a page's cells with NaN, when poisoning is on: a page that changes hands holds nothing its new owner may
  // read.
  void poison_page(int32_t group, int32_t page);

  // Bytes of one page of a group over all layers, and of one request's state.
  static int64_t page_bytes(const ModelFacts& model, int32_t group, int64_t page_size, at::ScalarType dtype);
  static int64_t state_bytes(const ModelFacts& model);

 private:
  using ByLayer = std::vector<at::Tensor>;  // undefined where a layer has none

  KvCacheConfig config_;
  std::vector<CacheTensorFacts> facts_;
  std::vector<ByLayer> cells_;  // per kind
  std::vector<ByLayer> state_;  // per kind
};

}  // namespace reprise
