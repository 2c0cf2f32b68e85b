#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "reprise/config.h"
#include "reprise/model_facts.h"
#include "reprise/request.h"

namespace reprise {

// What one cache group takes.
struct CacheGroupStats {
  std::string name;       // "window", "compressed", "partial"
  int64_t num_pages = 0;  // without the pad page
  int64_t free_pages = 0;
  int64_t page_size = 0;  // tokens
  int64_t bytes = 0;
};

struct EngineStats {
  int64_t num_running = 0;
  int64_t num_waiting = 0;
  int64_t num_finished = 0;
  int64_t steps = 0;
  double step_seconds = 0;  // spent in step(), and of it in the model's forward
  double model_seconds = 0;
  int64_t prompt_rows = 0;
  int64_t cached_rows = 0;
  int64_t encoder_rows_run = 0;
  int64_t replay_rows_run = 0;  // prompt output rows computed, summed over the replay layers
  std::vector<int64_t> replay_rows_by_layer;
  int64_t generated_tokens = 0;
  int64_t preemptions = 0;
  ReplayMode replay_mode = ReplayMode::kOff;  // the mode that requests run under unless they say otherwise
  std::string replay_reason;                  // why the configured mode is not in force; empty when it is
  int64_t num_encoder_layers = 0;
  int64_t num_replay_layers = 0;
  int64_t weight_bytes = 0;
  std::string load_notice;    // tensors of the checkpoint that were passed over (drafter, vision); empty when none were
  int64_t max_model_len = 0;  // tokens a request may have in all
  std::vector<CacheGroupStats> cache_groups;
};

// A DeepSeek-V4.1 checkpoint, its caches and its scheduler. step() runs on one thread at a time; submit, abort and
// stats may be called from any thread at any time. EngineLoop (engine_loop.h) runs one on a thread of its own.
class Engine {
 public:
  class Impl;
  explicit Engine(std::unique_ptr<Impl> impl);  // the library's own way in
  // Loads CHECKPOINT (a Hugging Face folder). Throws std::invalid_argument that says what is wrong with it.
  static std::unique_ptr<Engine> load(const std::string& checkpoint_dir, EngineConfig config = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Queues a request. Throws std::invalid_argument for one that cannot be served; nothing else is affected.
  RequestId submit(Request request);
  // Ends a request wherever it is and frees what it holds; its last output comes from the next step().
  // Returns false when there is no such unfinished request.
  bool abort(RequestId id);
  // Ends every unfinished request; returns how many.
  int64_t abort_all();
  // Runs one step and returns what it brought. Returns at once when there is nothing to run. When it throws, the
  // requests of the step are as before it: the next step runs them again.
  std::vector<RequestOutput> step();
  bool has_unfinished() const;
  EngineStats stats() const;
  // Throws std::logic_error when page pools, block tables, prefix index and queues disagree: for tests, as it visits
  // every page.
  void check_integrity() const;
  const ModelFacts& model_facts() const;
  const EngineConfig& config() const;

 private:
  friend class EngineLoop;
  // While a loop runs the engine, step() and submit() are refused and these are the loop's.
  void set_looping(bool looping);
  RequestId submit_unchecked(Request request);
  std::vector<RequestOutput> step_unchecked();
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise
