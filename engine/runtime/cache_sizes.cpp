#include "runtime/cache_sizes.h"

#include <algorithm>
#include <string>

#include "context/kv_cache.h"
#include "memory/free_memory.h"
#include "reprise/error.h"

namespace reprise {

namespace {

constexpr double kFreeMemoryShare = 0.5;

int64_t pages_of(int64_t tokens, int64_t page_size) { return (tokens + page_size - 1) / page_size; }

int64_t wanted_model_len(const ModelFacts& model, const EngineConfig& engine) {
  return engine.max_model_len > 0 ? std::min(engine.max_model_len, model.max_position_embeddings)
                                  : model.max_position_embeddings;
}

}  // namespace

int64_t max_step_rows(const ModelFacts& model, const EngineConfig& engine) {
  return std::min(engine.max_num_batched_tokens, engine.max_num_seqs * wanted_model_len(model, engine));
}

CacheSizes choose_cache_sizes(const ModelFacts& model, const EngineConfig& engine, at::ScalarType dtype) {
  const int64_t page = engine.page_size;
  const int64_t wanted_len = wanted_model_len(model, engine);
  const int64_t budget = engine.kv_cache_memory > 0
                             ? engine.kv_cache_memory
                             : static_cast<int64_t>(kFreeMemoryShare * static_cast<double>(free_memory()));
  const int64_t state = KvCache::state_bytes(model) * engine.max_num_seqs;
  const int64_t chunk = std::min(engine.max_num_batched_tokens, wanted_len);

  CacheSizes sizes{.max_model_len = wanted_len};
  std::vector<int64_t> page_bytes;
  std::vector<int64_t> most;
  int64_t growing_bytes = 0;  // of a page in every group that keeps all rows
  int64_t least = state;
  for (size_t group = 0; group < model.groups.size(); ++group) {
    const int64_t bytes = KvCache::page_bytes(model, static_cast<int32_t>(group), page, dtype);
    page_bytes.push_back(bytes);
    const int64_t window = model.groups[group].window;
    if (window > 0) {
      // A request keeps its window, at any alignment, and the rows of the step it is in.
      const int64_t resident = pages_of(window, page) + 1;
      sizes.num_pages.push_back(resident + pages_of(chunk, page) + 1 + 1);  // the pad page too
      most.push_back(engine.max_num_seqs * resident + pages_of(max_step_rows(model, engine), page) +
                     engine.max_num_seqs + 1);
    } else {
      sizes.num_pages.push_back(2);
      most.push_back(engine.max_num_seqs * pages_of(wanted_len, page) + 1);
      growing_bytes += bytes;
    }
    least += sizes.num_pages.back() * bytes;
  }
  REPRISE_REQUIRE(budget >= least, "[kv_cache_memory] wanted at least ", least, " bytes for one request with steps of ",
                  chunk, " rows (max_num_batched_tokens) but got ", budget,
                  "; give more memory, or lower max_num_batched_tokens, max_num_seqs or page_size");

  // First one request, as long as memory allows; then all groups grow alike, so that more memory never means fewer
  // pages.
  int64_t rest = budget - least;
  if (growing_bytes > 0) {
    const int64_t longest = std::min(pages_of(wanted_len, page) + 1, 2 + rest / growing_bytes);
    rest -= (longest - 2) * growing_bytes;
    for (size_t group = 0; group < model.groups.size(); ++group) {
      if (model.groups[group].window == 0) sizes.num_pages[group] = longest;
    }
  }
  // In double: the bytes of all that the requests could use may exceed int64_t.
  double wanted_bytes = 0;
  std::vector<double> more;
  for (size_t group = 0; group < model.groups.size(); ++group) {
    more.push_back(static_cast<double>(std::max<int64_t>(most[group] - sizes.num_pages[group], 0)));
    wanted_bytes += more.back() * static_cast<double>(page_bytes[group]);
  }
  const double share = wanted_bytes > 0 ? std::min(1.0, static_cast<double>(rest) / wanted_bytes) : 0;
  for (size_t group = 0; group < model.groups.size(); ++group)
    sizes.num_pages[group] += static_cast<int64_t>(share * more[group]);
  // A request may take all pages of the smallest group that keeps its rows.
  for (size_t group = 0; group < model.groups.size(); ++group) {
    if (model.groups[group].window == 0)
      sizes.max_model_len = std::min(sizes.max_model_len, (sizes.num_pages[group] - 1) * page);
  }
  if (engine.kv_cache_memory > 0) {
    int64_t bytes = state;
    for (size_t group = 0; group < model.groups.size(); ++group) bytes += sizes.num_pages[group] * page_bytes[group];
    const int64_t free = free_memory();
    REPRISE_REQUIRE(bytes <= free, "[kv_cache_memory] wanted caches within the ", free,
                    " bytes that are free or that this process may still take but got ", bytes,
                    " bytes; give them less, or lower max_num_seqs or max_model_len");
  }
  return sizes;
}

std::vector<CacheGroupStats> describe_cache_groups(const ModelFacts& model, const EngineConfig& engine,
                                                   at::ScalarType dtype, const CacheSizes& sizes) {
  std::vector<CacheGroupStats> groups;
  const auto add = [&groups](const std::string& name, int64_t num_pages, int64_t page_size, int64_t bytes) {
    groups.push_back(
        {.name = name, .num_pages = num_pages, .free_pages = num_pages, .page_size = page_size, .bytes = bytes});
  };
  for (size_t group = 0; group < model.groups.size(); ++group) {
    add(model.groups[group].name, sizes.num_pages[group] - 1, engine.page_size,
        sizes.num_pages[group] * KvCache::page_bytes(model, static_cast<int32_t>(group), engine.page_size, dtype));
  }
  // One page per request: the incomplete group of its last tokens.
  const int64_t state = KvCache::state_bytes(model);
  if (state > 0) add(model.state_name, engine.max_num_seqs, model.max_ratio(), engine.max_num_seqs * state);
  return groups;
}

at::ScalarType resolve_dtype(const ModelFacts& model, const EngineConfig& engine) {
  const Dtype dtype = engine.dtype == Dtype::kAuto ? model.dtype : engine.dtype;
  return dtype == Dtype::kFloat32 ? at::kFloat : at::kBFloat16;
}

}  // namespace reprise
