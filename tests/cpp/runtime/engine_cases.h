#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "../temporary_folder.h"
#include "context/kv_cache.h"
#include "engine_harness.h"
#include "runtime/cache_sizes.h"

// Prompts, engines and expectations of the tests that serve many requests at once.
namespace reprise::testing {

constexpr int32_t kFirstToken = 3;  // of the tiny vocabularies, behind the special tokens
constexpr int32_t kNumPlainTokens = 285;

inline std::vector<int32_t> make_prompt(int64_t length, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> prompt(static_cast<size_t>(length));
  for (auto& id : prompt) id = kFirstToken + static_cast<int32_t>(random() % kNumPlainTokens);
  return prompt;
}

// Shares its first `shared` tokens with make_prompt(.., seed) and not the one after them.
inline std::vector<int32_t> make_prompt_sharing(int64_t shared, int64_t length, unsigned seed, int32_t tail) {
  std::vector<int32_t> prompt = make_prompt(length, seed);
  for (auto p = static_cast<size_t>(shared); p < prompt.size(); ++p) {
    prompt[p] = kFirstToken + (prompt[p] - kFirstToken + 1 + tail) % kNumPlainTokens;
  }
  return prompt;
}

// Every other request samples with its own seed, the others are greedy.
inline Request make_request(std::vector<int32_t> prompt, int64_t max_tokens, size_t index = 0) {
  Request request = greedy_request(std::move(prompt), max_tokens);
  if (index % 2 == 1) {
    request.sampling.temperature = 0.8;
    request.sampling.top_p = 0.9;
    request.sampling.seed = index;
  }
  return request;
}

// A tiny checkpoint under another window: W is in no weight's shape.
class CheckpointWithWindow {
 public:
  CheckpointWithWindow(const std::string& checkpoint, int64_t window) {
    std::string config = read_text(data_path(checkpoint) + "/config.json");
    const std::string field = "\"sliding_window\": ";
    const size_t value = config.find(field) + field.size();
    config.replace(value, config.find(',', value) - value, std::to_string(window));
    folder_.write("config.json", config);
    std::filesystem::create_symlink(data_path(checkpoint) + "/model.safetensors", folder_ / "model.safetensors");
  }
  std::string path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

// What a request gets from a cold engine that serves nobody else, its prompt in one piece. The replay mode decides over
// values: exact must give what off gives.
inline Generated cold(const std::string& checkpoint_dir, EngineConfig config, const Request& request) {
  config.max_num_seqs = 1;
  config.max_num_batched_tokens = 4096;
  config.kv_cache_memory = 0;
  config.max_model_len = 0;
  config.max_waiting = 0;
  config.enable_prefix_caching = false;
  if (request.replay.value_or(config.replay) == ReplayMode::kExact) config.replay = ReplayMode::kOff;
  Request same = request;
  same.replay.reset();
  if (request.replay && *request.replay != ReplayMode::kExact) config.replay = *request.replay;
  same.timeout_s = 0;
  return run(*Engine::load(checkpoint_dir, config), {same}).front();
}

// Bytes for `compressed_pages`, the pad page among them, beside the fewest window pages that the engine accepts.
inline int64_t memory_for(const std::string& checkpoint_dir, const EngineConfig& config, int64_t compressed_pages) {
  const ModelFacts model = make_model_facts(load_model_config(checkpoint_dir));
  const auto pages = [&](int64_t tokens) { return (tokens + config.page_size - 1) / config.page_size; };
  // The window at any alignment, a step's rows at any alignment, the pad page.
  const int64_t window_pages = pages(model.window()) + 1 + pages(config.max_num_batched_tokens) + 1 + 1;
  return window_pages * KvCache::page_bytes(model, 0, config.page_size, at::kFloat) +
         compressed_pages * KvCache::page_bytes(model, 1, config.page_size, at::kFloat) +
         config.max_num_seqs * KvCache::state_bytes(model);
}

// Bytes for a share of what config.max_num_seqs requests of config.max_model_len tokens can use, in both groups alike,
// and no less than one of them needs.
inline int64_t memory_share(const std::string& checkpoint_dir, EngineConfig config, double share) {
  const ModelFacts model = make_model_facts(load_model_config(checkpoint_dir));
  const int64_t least =
      memory_for(checkpoint_dir, config, 2 + (config.max_model_len + config.page_size - 1) / config.page_size);
  config.kv_cache_memory = int64_t{1} << 40;
  const CacheSizes most = choose_cache_sizes(model, config, at::kFloat);
  const int64_t pages = most.num_pages[0] * KvCache::page_bytes(model, 0, config.page_size, at::kFloat) +
                        most.num_pages[1] * KvCache::page_bytes(model, 1, config.page_size, at::kFloat);
  return std::max(least, static_cast<int64_t>(share * static_cast<double>(pages)) +
                             config.max_num_seqs * KvCache::state_bytes(model));
}

// Cached pages count as free.
inline void expect_all_pages_free(const Engine& engine) {
  for (const auto& group : engine.stats().cache_groups) EXPECT_EQ(group.free_pages, group.num_pages) << group.name;
}

inline int64_t pages_in_use(const Engine& engine, const std::string& group_name) {
  for (const auto& group : engine.stats().cache_groups) {
    if (group.name == group_name) return group.num_pages - group.free_pages;
  }
  throw std::logic_error("no cache group " + group_name);
}

}  // namespace reprise::testing
