#include "runtime/engine_checks.h"

#include <algorithm>
#include <cmath>

#include "reprise/error.h"
#include "runtime/sampler.h"

namespace reprise {

void check_engine_config(const EngineConfig& config, const ModelConfig& model) {
  const auto at_least = [](const char* name, int64_t value, int64_t least) {
    REPRISE_REQUIRE(value >= least, "[load] wanted ", name, " of at least ", least, " but got ", value);
  };
  at_least("max_num_seqs", config.max_num_seqs, 1);
  at_least("max_num_batched_tokens", config.max_num_batched_tokens, 1);
  at_least("max_model_len", config.max_model_len, 0);
  at_least("max_waiting", config.max_waiting, 0);
  at_least("page_size", config.page_size, 1);
  at_least("kv_cache_memory", config.kv_cache_memory, 0);
  at_least("num_threads", config.num_threads, 0);
  const int64_t max_rows = std::max(config.max_num_batched_tokens, config.max_num_seqs);
  int64_t last = 0;
  for (const int64_t bucket : config.graph_buckets) {
    REPRISE_REQUIRE(bucket > last && bucket <= max_rows, "[load] wanted graph_buckets that ascend from 1 to at most ", max_rows,
                    " rows (max_num_batched_tokens) but got ", bucket, last > 0 ? concat(" after ", last) : "");
    last = bucket;
  }
  REPRISE_REQUIRE(config.max_model_len <= model.max_position_embeddings, "[load] wanted max_model_len of at most the model's ",
                  model.max_position_embeddings, " positions but got ", config.max_model_len);
  for (const int64_t source : model.kv_source_layer_ids) {
    const int64_t ratio = model.compress_ratios[static_cast<size_t>(source)];
    REPRISE_REQUIRE(config.page_size % ratio == 0, "[load] wanted a page_size that is a multiple of compress ratio ", ratio,
                    " (layer ", source, ") but got ", config.page_size);
  }
}

void check_request(const Request& request, const ModelConfig& model, int64_t max_model_len) {
  const auto& prompt = request.prompt_token_ids;
  REPRISE_REQUIRE(!prompt.empty(), "[submit] wanted a prompt of at least 1 token but got none");
  for (size_t i = 0; i < prompt.size(); ++i) {
    REPRISE_REQUIRE(prompt[i] >= 0 && prompt[i] < model.vocab_size, "[submit] wanted token ids from 0 to ", model.vocab_size - 1,
                    " but got ", prompt[i], " at position ", i);
  }
  check_sampling_params(request.sampling, model.vocab_size);
  REPRISE_REQUIRE(std::isfinite(request.timeout_s) && request.timeout_s >= 0,
                  "[submit] wanted a timeout_s of at least 0 but got ", request.timeout_s);
  const auto length = static_cast<int64_t>(prompt.size());
  REPRISE_REQUIRE(request.sampling.max_tokens <= max_model_len - length, "[submit] wanted prompt + max_tokens of at most ",
                  max_model_len, " tokens (max_model_len) but got ", length, " + ", request.sampling.max_tokens);
}

}  // namespace reprise
