#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "inputs/engram_vocabulary.h"
#include "reprise/engine.h"

// Helpers of the tests that run whole checkpoints.
namespace reprise::testing {

inline std::string data_path(const std::string& name) { return std::string(REPRISE_TEST_DATA) + "/" + name; }

// Small pages, poisoned cells.
inline EngineConfig tiny_config(const std::string& checkpoint) {
  EngineConfig config;
  config.page_size = 4;
  config.max_num_seqs = 8;
  config.poison_cache = true;
  config.num_threads = 1;  // steps this small only wait for each other
  const ModelFacts model = make_model_facts(load_model_config(data_path(checkpoint)));
  if (!model.engram.layer_ids.empty())
    config.engram_vocabulary = read_engram_vocabulary(data_path("engram_vocabulary"), model);
  return config;
}

// Greedy, all logprobs, `max_tokens` tokens whatever they are.
inline Request greedy_request(std::vector<int32_t> prompt, int64_t max_tokens) {
  Request request;
  request.prompt_token_ids = std::move(prompt);
  request.sampling.max_tokens = max_tokens;
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  request.sampling.logprobs = -1;
  return request;
}

// The logprobs of one token's entries as a row [vocab].
inline std::vector<float> to_row(const TokenLogprobs& entries) {
  std::vector<float> row(entries.size());
  for (const auto& entry : entries) row.at(static_cast<size_t>(entry.token_id)) = entry.logprob;
  return row;
}

struct Generated {
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> logprobs;         // per generated token [vocab]
  std::vector<std::vector<float>> prompt_logprobs;  // per prompt token but the first [vocab]
  RequestMetrics metrics;
  FinishReason finish_reason = FinishReason::kNone;
  friend bool operator==(const Generated& a, const Generated& b) {
    return a.tokens == b.tokens && a.logprobs == b.logprobs && a.prompt_logprobs == b.prompt_logprobs;
  }
};

inline void take(const RequestOutput& output, Generated& result) {
  result.tokens.insert(result.tokens.end(), output.new_token_ids.begin(), output.new_token_ids.end());
  for (const auto& entries : output.logprobs) result.logprobs.push_back(to_row(entries));
  for (size_t i = 1; i < output.prompt_logprobs.size(); ++i)
    result.prompt_logprobs.push_back(to_row(output.prompt_logprobs[i]));
  if (!output.finished) return;
  result.metrics = output.metrics;
  result.finish_reason = output.finish_reason;
}

// A step, and the engine's own books after it.
inline std::vector<RequestOutput> checked_step(Engine& engine) {
  auto outputs = engine.step();
  engine.check_integrity();
  return outputs;
}

// Submits the requests together and steps until all are done; results in the order of the requests.
inline std::vector<Generated> run(Engine& engine, const std::vector<Request>& requests) {
  std::map<RequestId, size_t> places;
  for (const auto& request : requests) {
    const RequestId id = engine.submit(request);
    places.emplace(id, places.size());
  }
  std::vector<Generated> results(requests.size());
  while (engine.has_unfinished()) {
    for (const auto& output : checked_step(engine)) take(output, results.at(places.at(output.id)));
  }
  return results;
}

// A golden file's prompts and continuations.
class Golden {
 public:
  Golden(const std::string& checkpoint, const std::string& kind)
      : file_(data_path(checkpoint) + "/" + kind + ".safetensors") {}

  bool has(const std::string& name) const { return file_.tensors().contains(name); }

  std::vector<int32_t> ids(const std::string& name) const {
    const auto values = read<int64_t>(name);
    return {values.begin(), values.end()};
  }

  // Rows of logits [n, vocab] as log-softmax.
  std::vector<std::vector<float>> logprobs(const std::string& name) const {
    const auto& shape = file_.tensors().at(name).shape;
    const auto values = read<float>(name);
    std::vector<std::vector<float>> rows;
    for (int64_t r = 0; r < shape[0]; ++r) {
      std::vector<float> row(values.begin() + r * shape[1], values.begin() + (r + 1) * shape[1]);
      double total = 0;
      for (const float x : row) total += std::exp(static_cast<double>(x));
      for (float& x : row) x = static_cast<float>(x - std::log(total));
      rows.push_back(std::move(row));
    }
    return rows;
  }

 private:
  template <typename T>
  std::vector<T> read(const std::string& name) const {
    const auto bytes = file_.tensors().at(name).read();
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  SafetensorsFile file_;
};

}  // namespace reprise::testing
