#include <algorithm>

#include "reprise/config.h"

// Which layer publishes what a layer reads. Here rather than beside the config's reader, since the layers ask.
namespace reprise {
namespace {

// The latest id at or before `layer`, -1 when there is none.
int64_t latest_at_or_before(const std::vector<int64_t>& ids, int64_t layer) {
  const auto after = std::upper_bound(ids.begin(), ids.end(), layer);
  return after == ids.begin() ? -1 : *(after - 1);
}

bool reads_compressed_kv(const ModelConfig& config, int64_t layer) {
  return layer >= 0 && layer < static_cast<int64_t>(config.compress_ratios.size()) && config.compress_ratios[layer] > 0;
}

}  // namespace

int64_t ModelConfig::kv_source_of(int64_t layer) const {
  return reads_compressed_kv(*this, layer) ? latest_at_or_before(kv_source_layer_ids, layer) : -1;
}

int64_t ModelConfig::index_source_of(int64_t layer) const {
  return reads_compressed_kv(*this, layer) ? latest_at_or_before(index_source_layer_ids, layer) : -1;
}

}  // namespace reprise
