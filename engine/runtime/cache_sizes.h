#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "reprise/config.h"
#include "reprise/engine.h"
#include "reprise/model_facts.h"

namespace reprise {

struct CacheSizes {
  std::vector<int64_t> num_pages;  // per cache group, the pad page included
  int64_t max_model_len = 0;       // tokens of one request
};

// Rows that one step can have at most.
int64_t max_step_rows(const ModelFacts& model, const EngineConfig& engine);

// Divides the cache memory among the groups: what max_num_seqs requests of the longest kind can use, or less when the
// memory does not reach: one request, as long as wanted, comes first, and more memory never means fewer pages. Throws
// std::invalid_argument when it does not hold one request's window and one page.
CacheSizes choose_cache_sizes(const ModelFacts& model, const EngineConfig& engine, at::ScalarType dtype);

// What the groups take, all of their pages free; behind them, where layers keep any, a running request's own state.
std::vector<CacheGroupStats> describe_cache_groups(const ModelFacts& model, const EngineConfig& engine,
                                                   at::ScalarType dtype, const CacheSizes& sizes);

// The arithmetic dtype that an engine of this config runs in.
at::ScalarType resolve_dtype(const ModelFacts& model, const EngineConfig& engine);

}  // namespace reprise
