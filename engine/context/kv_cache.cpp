#include "context/kv_cache.h"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include <functional>
#include <limits>
#include <numeric>

#include "reprise/error.h"

namespace reprise {

namespace {

// The place of a layer's tensor of a kind.
at::Tensor& place(std::vector<std::vector<at::Tensor>>& tensors, int32_t kind, int64_t layer, size_t num_layers) {
  if (tensors.size() <= static_cast<size_t>(kind)) tensors.resize(static_cast<size_t>(kind) + 1);
  for (auto& by_layer : tensors) by_layer.resize(num_layers);
  return tensors[static_cast<size_t>(kind)].at(static_cast<size_t>(layer));
}

int64_t product(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

KvCache::KvCache(const ModelFacts& model, const KvCacheConfig& config) : config_(config), facts_(model.cache_tensors) {
  REPRISE_ENSURE(config.num_pages.size() == model.groups.size(), config.num_pages.size(), " page counts of ",
                 model.groups.size(), " groups");
  const auto make = [&](at::IntArrayRef sizes, at::ScalarType dtype) {
    at::Tensor cells = at::empty(sizes, at::TensorOptions().dtype(dtype));
    if (config.poison) cells.fill_(std::numeric_limits<double>::quiet_NaN());
    return cells;
  };
  for (const CacheTensorFacts& facts : facts_) {
    REPRISE_ENSURE(config.page_size % facts.ratio == 0, "a page of ", config.page_size,
                   " tokens holds whole groups of ", facts.ratio);
    const int64_t cells = config.num_pages[static_cast<size_t>(facts.group)] * (config.page_size / facts.ratio);
    place(cells_, facts.kind, facts.layer, model.layers.size()) = make({cells, facts.width}, config.dtype);
  }
  for (const StateTensorFacts& facts : model.state_tensors) {
    std::vector<int64_t> sizes{config.max_num_seqs};
    sizes.insert(sizes.end(), facts.sizes.begin(), facts.sizes.end());
    place(state_, facts.kind, facts.layer, model.layers.size()) = make(sizes, at::kFloat);
  }
}

void KvCache::poison_page(int32_t group, int32_t page) {
  if (!config_.poison) return;
  for (const CacheTensorFacts& facts : facts_) {
    if (facts.group != group) continue;
    const int64_t size = config_.page_size / facts.ratio;
    cells(facts.kind, facts.layer).narrow(0, page * size, size).fill_(std::numeric_limits<double>::quiet_NaN());
  }
}

int64_t KvCache::page_bytes(const ModelFacts& model, int32_t group, int64_t page_size, at::ScalarType dtype) {
  int64_t values = 0;
  for (const CacheTensorFacts& facts : model.cache_tensors) {
    if (facts.group == group) values += page_size / facts.ratio * facts.width;
  }
  return values * static_cast<int64_t>(c10::elementSize(dtype));
}

int64_t KvCache::state_bytes(const ModelFacts& model) {
  int64_t values = 0;
  for (const StateTensorFacts& facts : model.state_tensors) values += product(facts.sizes);
  return values * static_cast<int64_t>(sizeof(float));
}

}  // namespace reprise
