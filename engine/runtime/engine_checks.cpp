#include "runtime/engine_checks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reprise/error.h"
#include "runtime/sampler.h"

namespace reprise {

namespace {

// Far beyond what a machine serves; sizes below them multiply without overflow.
constexpr int64_t kMaxNumSeqs = 65536;
constexpr int64_t kMaxNumBatchedTokens = 1 << 20;
constexpr int64_t kMaxPageSize = 65536;
constexpr int64_t kMaxNumThreads = 1024;

}  // namespace

EngineConfig check_engine_config(EngineConfig config, const ModelFacts& model) {
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  const auto within = [](const char* name, int64_t value, int64_t least, int64_t most) {
    REPRISE_REQUIRE(value >= least, "[load] wanted ", name, " of at least ", least, " but got ", value);
    REPRISE_REQUIRE(value <= most, "[load] wanted ", name, " of at most ", most, " but got ", value);
  };
  within("max_num_seqs", config.max_num_seqs, 1, kMaxNumSeqs);
  within("max_num_batched_tokens", config.max_num_batched_tokens, 1, kMaxNumBatchedTokens);
  within("max_model_len", config.max_model_len, 0, kAny);
  within("max_waiting", config.max_waiting, 0, kAny);
  within("page_size", config.page_size, 1, kMaxPageSize);
  within("kv_cache_memory", config.kv_cache_memory, 0, kAny);
  within("num_threads", config.num_threads, 0, kMaxNumThreads);
  // Every request may bring a row to a step.
  config.max_num_batched_tokens = std::max(config.max_num_batched_tokens, config.max_num_seqs);
  const int64_t max_rows = config.max_num_batched_tokens;
  int64_t last = 0;
  for (const int64_t bucket : config.graph_buckets) {
    REPRISE_REQUIRE(bucket > last && bucket <= max_rows, "[load] wanted graph_buckets that ascend from 1 to at most ",
                    max_rows, " rows (max_num_batched_tokens) but got ", bucket,
                    last > 0 ? concat(" after ", last) : "");
    last = bucket;
  }
  REPRISE_REQUIRE(config.max_model_len <= model.max_position_embeddings,
                  "[load] wanted max_model_len of at most the model's ", model.max_position_embeddings,
                  " positions but got ", config.max_model_len);
  for (const CellFacts& cells : model.cells) {
    REPRISE_REQUIRE(config.page_size % cells.ratio == 0,
                    "[load] wanted a page_size that is a multiple of compress ratio ", cells.ratio, " but got ",
                    config.page_size);
  }
  return config;
}

void check_request(const Request& request, const ModelFacts& model, int64_t max_model_len) {
  const auto& prompt = request.prompt_token_ids;
  REPRISE_REQUIRE(!prompt.empty(), "[submit] wanted a prompt of at least 1 token but got none");
  for (size_t i = 0; i < prompt.size(); ++i) {
    REPRISE_REQUIRE(prompt[i] >= 0 && prompt[i] < model.vocab_size, "[submit] wanted token ids from 0 to ",
                    model.vocab_size - 1, " but got ", prompt[i], " at position ", i);
  }
  check_sampling_params(request.sampling, model.vocab_size);
  REPRISE_REQUIRE(std::isfinite(request.timeout_s) && request.timeout_s >= 0,
                  "[submit] wanted a timeout_s of at least 0 but got ", request.timeout_s);
  const auto length = static_cast<int64_t>(prompt.size());
  REPRISE_REQUIRE(request.sampling.max_tokens <= max_model_len - length,
                  "[submit] wanted prompt + max_tokens of at most ", max_model_len, " tokens (max_model_len) but got ",
                  length, " + ", request.sampling.max_tokens);
}

}  // namespace reprise
