#include "context/kv_cache.h"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include <limits>

#include "reprise/error.h"

namespace reprise {

namespace {

// All layers' cells of a group are divided into the same number of pages.
void poison_page(std::vector<at::Tensor>& layers, int32_t page, int64_t num_pages) {
  for (auto& cells : layers) {
    if (!cells.defined()) continue;
    const int64_t size = cells.size(0) / num_pages;
    cells.narrow(0, page * size, size).fill_(std::numeric_limits<double>::quiet_NaN());
  }
}

}  // namespace

KvCache::KvCache(const ModelConfig& model, const KvCacheConfig& config) : config_(config) {
  const auto layers = static_cast<size_t>(model.num_hidden_layers);
  window_.resize(layers);
  compressed_.resize(layers);
  index_keys_.resize(layers);
  partial_.resize(layers);
  const auto make = [&](at::IntArrayRef sizes, at::ScalarType dtype) {
    at::Tensor cells = at::empty(sizes, at::TensorOptions().dtype(dtype));
    if (config.poison) cells.fill_(std::numeric_limits<double>::quiet_NaN());
    return cells;
  };
  for (size_t layer = 0; layer < layers; ++layer) {
    window_[layer] = make({config.num_window_pages * config.page_size, model.head_dim}, config.dtype);
  }
  for (const int64_t source : model.kv_source_layer_ids) {
    const auto layer = static_cast<size_t>(source);
    const int64_t ratio = model.compress_ratios[layer];
    REPRISE_ENSURE(config.page_size % ratio == 0, "a page of ", config.page_size, " tokens holds whole groups of ",
                   ratio);
    const int64_t cells = config.num_compressed_pages * (config.page_size / ratio);
    compressed_[layer] = make({cells, model.head_dim}, config.dtype);
    index_keys_[layer] = make({cells, model.index_head_dim}, config.dtype);
    if (ratio > 1) partial_[layer] = make({config.max_num_seqs, ratio, 2, model.head_dim}, at::kFloat);
  }
}

void KvCache::poison_window_page(int32_t page) {
  if (config_.poison) poison_page(window_, page, config_.num_window_pages);
}

void KvCache::poison_compressed_page(int32_t page) {
  if (!config_.poison) return;
  poison_page(compressed_, page, config_.num_compressed_pages);
  poison_page(index_keys_, page, config_.num_compressed_pages);
}

int64_t KvCache::window_page_bytes(const ModelConfig& model, int64_t page_size, at::ScalarType dtype) {
  return model.num_hidden_layers * page_size * model.head_dim * static_cast<int64_t>(c10::elementSize(dtype));
}

int64_t KvCache::compressed_page_bytes(const ModelConfig& model, int64_t page_size, at::ScalarType dtype) {
  int64_t values = 0;
  for (const int64_t source : model.kv_source_layer_ids) {
    values += page_size / model.compress_ratios[static_cast<size_t>(source)] * (model.head_dim + model.index_head_dim);
  }
  return values * static_cast<int64_t>(c10::elementSize(dtype));
}

int64_t KvCache::partial_bytes(const ModelConfig& model) {
  int64_t values = 0;
  for (const int64_t source : model.kv_source_layer_ids) {
    const int64_t ratio = model.compress_ratios[static_cast<size_t>(source)];
    if (ratio > 1) values += ratio * 2 * model.head_dim;
  }
  return values * static_cast<int64_t>(sizeof(float));
}

}  // namespace reprise
