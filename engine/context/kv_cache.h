#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "reprise/config.h"

namespace reprise {

struct KvCacheConfig {
  int64_t page_size = 0;             // tokens
  int64_t num_window_pages = 0;      // pad page included
  int64_t num_compressed_pages = 0;  // pad page included; 0 when no layer publishes
  int64_t max_num_seqs = 0;
  at::ScalarType dtype{};
  bool poison = false;  // fill all cells with NaN
};

// The tensors behind the pages: window KV per layer, compressed KV and index keys per KV source, and the partial groups
// of the sources that compress. Cell 0 of each is the pad cell.
class KvCache {
 public:
  KvCache(const ModelConfig& model, const KvCacheConfig& config);

  int64_t page_size() const { return config_.page_size; }
  // [pages * page_size, D]
  at::Tensor& window(int64_t layer) { return window_.at(static_cast<size_t>(layer)); }
  // [pages * page_size / ratio, D] and [.., d_idx] of a KV source
  at::Tensor& compressed(int64_t layer) { return compressed_.at(static_cast<size_t>(layer)); }
  at::Tensor& index_keys(int64_t layer) { return index_keys_.at(static_cast<size_t>(layer)); }
  // [max_num_seqs, ratio, 2, D] float32 of a KV source with ratio > 1
  at::Tensor& partial(int64_t layer) { return partial_.at(static_cast<size_t>(layer)); }

  // Fill a page's cells with NaN, when poisoning is on: a page that changes hands holds nothing its new owner may read.
  void poison_window_page(int32_t page);
  void poison_compressed_page(int32_t page);

  // Bytes of one page over all layers, and of one request's partial groups.
  static int64_t window_page_bytes(const ModelConfig& model, int64_t page_size, at::ScalarType dtype);
  static int64_t compressed_page_bytes(const ModelConfig& model, int64_t page_size, at::ScalarType dtype);
  static int64_t partial_bytes(const ModelConfig& model);

 private:
  KvCacheConfig config_;
  // Indexed by layer; undefined where a layer has none.
  std::vector<at::Tensor> window_;
  std::vector<at::Tensor> compressed_;
  std::vector<at::Tensor> index_keys_;
  std::vector<at::Tensor> partial_;
};

}  // namespace reprise
