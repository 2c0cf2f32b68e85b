#include "reprise/engine.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <random>
#include <set>
#include <unordered_map>

#include "inputs/engram_vocabulary.h"
#include "reprise/error.h"
#include "runtime/engine_checks.h"
#include "runtime/load_engine.h"
#include "runtime/model_runner.h"
#include "runtime/replay_mode.h"
#include "runtime/request_state.h"
#include "runtime/sampler.h"
#include "runtime/step_results.h"
#include "scheduler/scheduler.h"

namespace reprise {

namespace {

// Seconds; a longer timeout is none, and would overflow the clock.
constexpr double kLongestTimeout = 1e9;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

EngineConfig complete(EngineConfig config, const std::string& checkpoint_dir, const ModelFacts& model) {
  config = check_engine_config(std::move(config), model);
  if (model.engram.layer_ids.empty()) {
    config.engram_vocabulary.clear();
  } else if (config.engram_vocabulary.empty()) {
    config.engram_vocabulary = read_engram_vocabulary(checkpoint_dir, model);
  } else {
    check_engram_vocabulary(config.engram_vocabulary, model, "[engram_vocabulary] ");
  }
  return config;
}

SchedulerConfig scheduler_config(const ModelFacts& model, const EngineConfig& engine, const CacheSizes& sizes) {
  return {.model = model,
          .max_num_seqs = engine.max_num_seqs,
          .max_num_batched_tokens = engine.max_num_batched_tokens,
          .max_model_len = sizes.max_model_len,
          .max_waiting = engine.max_waiting,
          .page_size = engine.page_size,
          .num_pages = sizes.num_pages,
          .enable_prefix_caching = engine.enable_prefix_caching,
          .prefix_rebuild = engine.prefix_rebuild,
          .hash_seed = std::random_device{}() | uint64_t{std::random_device{}()} << 32};
}

}  // namespace

class Engine::Impl {
 public:
  Impl(const std::string& checkpoint_dir, EngineConfig config, std::span<const Family> families)
      : decoder_(read_decoder(checkpoint_dir, families)),
        model_(decoder_->facts()),
        config_(complete(std::move(config), checkpoint_dir, model_)),
        replay_(decide_replay(config_.replay, model_)),
        runner_(checkpoint_dir, *decoder_, config_),
        scheduler_(scheduler_config(model_, config_, runner_.cache_sizes())) {}

  RequestId submit(Request request) {
    check_request(request, model_, runner_.cache_sizes().max_model_len);
    const auto now = Clock::now();
    RequestState state{.request = std::move(request), .submitted = now};
    const auto& sampling = state.request.sampling;
    ReplayDecision decision = decide_replay(state.request.replay.value_or(config_.replay), model_);
    const bool every_row = sampling.prompt_logprobs || sampling.return_hidden_states;
    if (every_row && decision.mode != ReplayMode::kOff) {
      decision = {ReplayMode::kOff,
                  sampling.prompt_logprobs ? "prompt logprobs read every row" : "hidden states read every row"};
    }
    state.replay = decision.mode;
    state.replay_reason = std::move(decision.reason);
    state.prompt_length = static_cast<int64_t>(state.request.prompt_token_ids.size());
    if (state.request.timeout_s > 0 && state.request.timeout_s < kLongestTimeout) {
      state.deadline =
          now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(state.request.timeout_s));
    }
    const std::lock_guard lock(mutex_);
    state.seed = sampling.seed ? *sampling.seed : seeds_();
    const RequestId id = next_id_;
    SequenceRequest sequence{.id = id,
                             .prompt = std::move(state.request.prompt_token_ids),
                             .max_tokens = sampling.max_tokens,
                             .priority = state.request.priority,
                             .replay = state.replay,
                             .needs_every_row = every_row,
                             .reads_prompt_logits = sampling.prompt_logprobs.has_value()};
    const auto added = requests_.emplace(id, std::move(state)).first;
    try {
      if (added->second.deadline) deadlines_.emplace(*added->second.deadline, id);
      scheduler_.add(std::move(sequence));
    } catch (...) {
      forget(added);
      throw;
    }
    ++next_id_;
    return id;
  }

  bool abort(RequestId id) {
    const std::lock_guard lock(mutex_);
    return end_early(id, FinishReason::kAbort);
  }

  int64_t abort_all() {
    const std::lock_guard lock(mutex_);
    std::vector<RequestId> ids;
    for (const auto& [id, state] : requests_) ids.push_back(id);
    std::sort(ids.begin(), ids.end());
    for (const RequestId id : ids) end_early(id, FinishReason::kAbort);
    return static_cast<int64_t>(ids.size());
  }

  std::vector<RequestOutput> step() {
    const std::lock_guard step_lock(step_mutex_);
    const c10::InferenceMode inference;
    // The setting is this thread's own, and any thread may step.
    if (config_.num_threads > 0) at::set_num_threads(static_cast<int>(config_.num_threads));

    const auto begin = Clock::now();
    std::unique_lock lock(mutex_);
    end_overdue();
    const StepPlan& plan = scheduler_.plan();
    if (plan.sequences.empty()) return std::exchange(ended_, {});
    std::vector<SequenceStep> steps;
    try {
      steps = run_model(plan, lock);
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      scheduler_.abandon();
      throw;
    }
    auto step_outputs = commit(plan, steps);
    step_seconds_ += seconds_between(begin, Clock::now());
    return step_outputs;
  }

  bool has_unfinished() const {
    const std::lock_guard lock(mutex_);
    return !requests_.empty() || !ended_.empty();
  }

  void check_integrity() const {
    const std::lock_guard lock(mutex_);
    scheduler_.check_integrity();
    REPRISE_ENSURE(static_cast<int64_t>(requests_.size()) == scheduler_.num_running() + scheduler_.num_waiting(),
                   "the engine keeps ", requests_.size(), " requests, the scheduler ", scheduler_.num_running(),
                   " and ", scheduler_.num_waiting());
  }

  EngineStats stats() const {
    const std::lock_guard lock(mutex_);
    const auto& totals = scheduler_.totals();
    const auto& sizes = runner_.cache_sizes();
    EngineStats stats{.num_running = scheduler_.num_running(),
                      .num_waiting = scheduler_.num_waiting(),
                      .num_finished = totals.num_finished,
                      .steps = totals.steps,
                      .step_seconds = step_seconds_,
                      .model_seconds = model_seconds_,
                      .prompt_rows = totals.prompt_rows,
                      .cached_rows = totals.cached_rows,
                      .encoder_rows_run = totals.encoder_rows_run,
                      .replay_rows_by_layer = totals.replay_rows_by_layer,
                      .generated_tokens = totals.generated_tokens,
                      .preemptions = totals.preemptions,
                      .replay_mode = replay_.mode,
                      .replay_reason = replay_.reason,
                      .num_encoder_layers = model_.num_encoder_layers,
                      .num_replay_layers = model_.num_replay_layers(),
                      .weight_bytes = runner_.weight_bytes(),
                      .load_notice = runner_.load_notice(),
                      .max_model_len = sizes.max_model_len};
    for (const int64_t rows : totals.replay_rows_by_layer) stats.replay_rows_run += rows;
    stats.cache_groups = describe_cache_groups(model_, config_, runner_.dtype(), sizes);
    for (size_t group = 0; group < model_.groups.size(); ++group)
      stats.cache_groups[group].free_pages = scheduler_.page_stats(static_cast<int32_t>(group)).free_pages;
    if (stats.cache_groups.size() > model_.groups.size())
      stats.cache_groups.back().free_pages -= scheduler_.num_running();  // a page per request
    return stats;
  }

  void set_looping(bool looping) {
    const bool was_looping = looping_.exchange(looping);
    REPRISE_REQUIRE(!looping || !was_looping,
                    "[start] wanted an engine that no loop runs but another EngineLoop runs it");
  }
  bool is_looping() const { return looping_; }

  const ModelFacts& model() const { return model_; }
  const EngineConfig& config() const { return config_; }

 private:
  using Requests = std::unordered_map<RequestId, RequestState>;

  // Leaves `lock`, of mutex_, open while the model runs: requests come and end meanwhile.
  std::vector<SequenceStep> run_model(const StepPlan& plan, std::unique_lock<std::mutex>& lock) {
    std::vector<bool> hidden_rows;
    for (const auto& sequence : plan.sequences)
      hidden_rows.push_back(requests_.at(sequence.id).request.sampling.return_hidden_states);
    const StepInputs& inputs = runner_.prepare(plan, hidden_rows);
    lock.unlock();
    const auto begin = Clock::now();
    const StepOutputs outputs = runner_.run(inputs);
    const double seconds = seconds_between(begin, Clock::now());
    lock.lock();
    model_seconds_ += seconds;

    std::vector<const RequestState*> states;
    for (const auto& sequence : plan.sequences) {
      const auto found = requests_.find(sequence.id);
      states.push_back(found == requests_.end() ? nullptr : &found->second);
    }
    return read_outputs(plan, states, hidden_rows, outputs);
  }

  RequestMetrics metrics_of(RequestId id, const RequestState& state) const {
    const auto now = Clock::now();
    RequestMetrics metrics{
        .time_to_first_token = state.first_token ? seconds_between(state.submitted, *state.first_token) : 0,
        .total_time = seconds_between(state.submitted, now),
        .prompt_rows = state.prompt_length,
        .replay_mode = state.replay,
        .replay_reason = state.replay_reason};
    if (const RequestFacts* facts = scheduler_.facts(id)) {
      metrics.cached_rows = facts->cached_rows;
      metrics.prefix_rebuild = facts->prefix_rebuild;
      metrics.encoder_rows_run = facts->encoder_rows_run;
      metrics.replay_rows_by_layer = facts->replay_rows_by_layer;
      for (const int64_t rows : facts->replay_rows_by_layer) metrics.replay_rows_run += rows;
      metrics.preemptions = facts->preemptions;
    }
    return metrics;
  }

  // Ends a request outside a step; its output comes with the next one.
  bool end_early(RequestId id, FinishReason reason) {
    const auto found = requests_.find(id);
    if (found == requests_.end()) return false;
    ended_.push_back({.id = id, .finished = true, .finish_reason = reason, .metrics = metrics_of(id, found->second)});
    scheduler_.abort(id);
    forget(found);
    return true;
  }

  void forget(Requests::iterator request) {
    if (request->second.deadline) deadlines_.erase({*request->second.deadline, request->first});
    requests_.erase(request);
  }

  void end_overdue() {
    while (!deadlines_.empty() && deadlines_.begin()->first <= Clock::now()) {
      end_early(deadlines_.begin()->second, FinishReason::kTimeout);
    }
  }

  // Takes what a step brought one request into its output, and decides whether that ends it.
  void take_results(const ScheduledSequence& sequence, SequenceStep& step, RequestState& state,
                    RequestOutput& output) const {
    const auto& sampling = state.request.sampling;
    output.id = sequence.id;
    output.hidden_states = std::move(step.hidden_states);
    state.hidden_rows_read = std::max(state.hidden_rows_read, sequence.start + sequence.num_rows);
    std::move(step.prompt_logprobs.begin(), step.prompt_logprobs.end(), std::back_inserter(state.prompt_logprobs));
    const bool prompt_done = sequence.start + sequence.num_rows >= sequence.prompt_length;
    if (!step.error.empty()) {
      output.error = std::move(step.error);
      output.finished = true;
      output.finish_reason = FinishReason::kAbort;
      return;
    }
    if (prompt_done && state.num_generated == 0 && sampling.prompt_logprobs) {
      output.prompt_logprobs.emplace_back();  // nothing precedes the first token
      std::move(state.prompt_logprobs.begin(), state.prompt_logprobs.end(), std::back_inserter(output.prompt_logprobs));
      state.prompt_logprobs.clear();
    }
    if (step.sampled) {
      const int32_t token = step.sampled->token;
      output.new_token_ids.push_back(token);
      if (sampling.logprobs) output.logprobs.push_back(std::move(step.sampled->logprobs));
      ++state.num_generated;
      const bool is_eos = !sampling.ignore_eos && std::find(model_.eos_token_ids.begin(), model_.eos_token_ids.end(),
                                                            token) != model_.eos_token_ids.end();
      const bool is_stop = is_eos || std::find(sampling.stop_token_ids.begin(), sampling.stop_token_ids.end(), token) !=
                                         sampling.stop_token_ids.end();
      if (is_stop) {
        output.stop_token_id = token;
        output.finish_reason = FinishReason::kStop;
      } else if (state.num_generated >= sampling.max_tokens) {
        output.finish_reason = FinishReason::kLength;
      }
    } else if (prompt_done && sampling.max_tokens == 0) {
      output.finish_reason = FinishReason::kLength;
    }
    output.finished = output.finish_reason != FinishReason::kNone;
  }

  std::vector<RequestOutput> commit(const StepPlan& plan, std::vector<SequenceStep>& steps) {
    const auto now = Clock::now();
    std::vector<RequestOutput> outputs = std::exchange(ended_, {});
    std::vector<SequenceResult> results;
    const size_t first_new = outputs.size();
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      const auto& sequence = plan.sequences[i];
      const auto found = requests_.find(sequence.id);
      if (found == requests_.end()) continue;
      RequestOutput output;
      take_results(sequence, steps[i], found->second, output);
      if (!output.new_token_ids.empty() && !found->second.first_token) found->second.first_token = now;
      // Logits that are no distribution come of KV that must not be shared: an abort publishes nothing.
      if (!output.error.empty()) {
        scheduler_.abort(sequence.id);
      } else {
        results.push_back(
            {.id = sequence.id,
             .token = output.new_token_ids.empty() ? std::nullopt : std::optional(output.new_token_ids.back()),
             .finished = output.finished});
      }
      if (output.finished || !output.new_token_ids.empty() || !output.hidden_states.empty())
        outputs.push_back(std::move(output));
    }
    scheduler_.commit(results);
    for (size_t i = first_new; i < outputs.size(); ++i) {
      const auto found = requests_.find(outputs[i].id);
      outputs[i].metrics = metrics_of(outputs[i].id, found->second);
      if (outputs[i].finished) forget(found);
    }
    return outputs;
  }

  std::unique_ptr<Decoder> decoder_;
  const ModelFacts& model_;
  EngineConfig config_;
  ReplayDecision replay_;
  ModelRunner runner_;

  std::atomic<bool> looping_ = false;
  mutable std::mutex step_mutex_;  // one step at a time; taken before mutex_
  mutable std::mutex mutex_;       // guards what follows; free while the model runs
  Scheduler scheduler_;
  Requests requests_;
  std::set<std::pair<Clock::time_point, RequestId>> deadlines_;  // of the requests that have one
  std::vector<RequestOutput> ended_;                             // outside a step, not yet returned
  RequestId next_id_ = 0;
  double step_seconds_ = 0;
  double model_seconds_ = 0;
  std::mt19937_64 seeds_{std::random_device{}()};
};

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

std::unique_ptr<Engine> Engine::load(const std::string& checkpoint_dir, EngineConfig config) {
  return load_engine(checkpoint_dir, std::move(config), families());
}

std::unique_ptr<Engine> load_engine(const std::string& checkpoint_dir, EngineConfig config,
                                    std::span<const Family> families) {
  const c10::InferenceMode inference;
  return std::make_unique<Engine>(std::make_unique<Engine::Impl>(checkpoint_dir, std::move(config), families));
}

RequestId Engine::submit(Request request) {
  REPRISE_REQUIRE(!impl_->is_looping(),
                  "[submit] wanted a call of EngineLoop::submit, with a callback, while a loop runs this engine");
  return submit_unchecked(std::move(request));
}

std::vector<RequestOutput> Engine::step() {
  REPRISE_REQUIRE(!impl_->is_looping(),
                  "[step] wanted an engine that is stepped by hand but a loop runs it; stop() the loop first");
  return step_unchecked();
}

void Engine::set_looping(bool looping) { impl_->set_looping(looping); }
RequestId Engine::submit_unchecked(Request request) { return impl_->submit(std::move(request)); }
std::vector<RequestOutput> Engine::step_unchecked() { return impl_->step(); }
bool Engine::abort(RequestId id) { return impl_->abort(id); }
int64_t Engine::abort_all() { return impl_->abort_all(); }
bool Engine::has_unfinished() const { return impl_->has_unfinished(); }
EngineStats Engine::stats() const { return impl_->stats(); }
void Engine::check_integrity() const { impl_->check_integrity(); }
const ModelFacts& Engine::model_facts() const { return impl_->model(); }
const EngineConfig& Engine::config() const { return impl_->config(); }

}  // namespace reprise
