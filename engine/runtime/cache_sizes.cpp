#include "runtime/cache_sizes.h"

#include <algorithm>

#include "context/kv_cache.h"
#include "memory/free_memory.h"
#include "reprise/error.h"

namespace reprise {

namespace {

constexpr double kFreeMemoryShare = 0.5;

int64_t pages_of(int64_t tokens, int64_t page_size) { return (tokens + page_size - 1) / page_size; }

int64_t wanted_model_len(const ModelConfig& model, const EngineConfig& engine) {
  return engine.max_model_len > 0 ? std::min(engine.max_model_len, model.max_position_embeddings)
                                  : model.max_position_embeddings;
}

}  // namespace

int64_t max_step_rows(const ModelConfig& model, const EngineConfig& engine) {
  return std::min(engine.max_num_batched_tokens, engine.max_num_seqs * wanted_model_len(model, engine));
}

CacheSizes choose_cache_sizes(const ModelConfig& model, const EngineConfig& engine, at::ScalarType dtype) {
  const int64_t page = engine.page_size;
  const bool publishes = !model.kv_source_layer_ids.empty();
  const int64_t wanted_len = wanted_model_len(model, engine);
  const int64_t budget = engine.kv_cache_memory > 0
                             ? engine.kv_cache_memory
                             : static_cast<int64_t>(kFreeMemoryShare * static_cast<double>(free_memory()));
  const int64_t partial = KvCache::partial_bytes(model) * engine.max_num_seqs;
  const int64_t window_bytes = KvCache::window_page_bytes(model, page, dtype);
  const int64_t compressed_bytes = KvCache::compressed_page_bytes(model, page, dtype);

  // A request keeps its window, at any alignment, and the rows of the step it is in.
  const int64_t resident = pages_of(model.sliding_window, page) + 1;
  const int64_t chunk = std::min(engine.max_num_batched_tokens, wanted_len);
  const int64_t least_window = resident + pages_of(chunk, page) + 1 + 1;  // the pad page too
  const int64_t most_window =
      engine.max_num_seqs * resident + pages_of(max_step_rows(model, engine), page) + engine.max_num_seqs + 1;
  const int64_t most_compressed = publishes ? engine.max_num_seqs * pages_of(wanted_len, page) + 1 : 0;
  const int64_t least = least_window * window_bytes + (publishes ? 2 * compressed_bytes : 0) + partial;
  REPRISE_REQUIRE(budget >= least, "[kv_cache_memory] wanted at least ", least, " bytes for one request with steps of ",
                  chunk, " rows (max_num_batched_tokens) but got ", budget,
                  "; give more memory, or lower max_num_batched_tokens, max_num_seqs or page_size");

  // First one request, as long as memory allows; then both groups grow alike, so that more memory never means fewer
  // pages.
  CacheSizes sizes{.num_window_pages = least_window, .num_compressed_pages = 0, .max_model_len = wanted_len};
  int64_t rest = budget - partial - least_window * window_bytes;
  if (publishes) {
    sizes.num_compressed_pages = std::min(pages_of(wanted_len, page) + 1, rest / compressed_bytes);
    rest -= sizes.num_compressed_pages * compressed_bytes;
  }
  const auto more_window = static_cast<double>(std::max<int64_t>(most_window - sizes.num_window_pages, 0));
  const auto more_compressed = static_cast<double>(std::max<int64_t>(most_compressed - sizes.num_compressed_pages, 0));
  // In double: the bytes of all that the requests could use may exceed int64_t.
  const double wanted_bytes =
      more_window * static_cast<double>(window_bytes) + more_compressed * static_cast<double>(compressed_bytes);
  const double share = wanted_bytes > 0 ? std::min(1.0, static_cast<double>(rest) / wanted_bytes) : 0;
  sizes.num_window_pages += static_cast<int64_t>(share * more_window);
  sizes.num_compressed_pages += static_cast<int64_t>(share * more_compressed);
  if (publishes) sizes.max_model_len = std::min(wanted_len, (sizes.num_compressed_pages - 1) * page);
  return sizes;
}

std::vector<CacheGroupStats> describe_cache_groups(const ModelConfig& model, const EngineConfig& engine,
                                                   at::ScalarType dtype, const CacheSizes& sizes) {
  std::vector<CacheGroupStats> groups;
  const auto add = [&groups](const char* name, int64_t num_pages, int64_t page_size, int64_t bytes) {
    groups.push_back(
        {.name = name, .num_pages = num_pages, .free_pages = num_pages, .page_size = page_size, .bytes = bytes});
  };
  add("window", sizes.num_window_pages - 1, engine.page_size,
      sizes.num_window_pages * KvCache::window_page_bytes(model, engine.page_size, dtype));
  if (sizes.num_compressed_pages > 0) {
    add("compressed", sizes.num_compressed_pages - 1, engine.page_size,
        sizes.num_compressed_pages * KvCache::compressed_page_bytes(model, engine.page_size, dtype));
  }
  // One page per request: the incomplete group of its last tokens.
  const int64_t partial = KvCache::partial_bytes(model);
  if (partial > 0) {
    const int64_t ratio = *std::max_element(model.compress_ratios.begin(), model.compress_ratios.end());
    add("partial", engine.max_num_seqs, ratio, engine.max_num_seqs * partial);
  }
  return groups;
}

at::ScalarType resolve_dtype(const ModelConfig& model, const EngineConfig& engine) {
  const Dtype dtype = engine.dtype == Dtype::kAuto ? model.dtype : engine.dtype;
  return dtype == Dtype::kFloat32 ? at::kFloat : at::kBFloat16;
}

}  // namespace reprise
