#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "fake_decoder.h"
#include "scheduler/scheduler.h"

namespace reprise::testing {

// Runs a scheduler on the fake decoder and checks after every step what must always hold: the plan is well formed, the
// books agree, and every row that any layer computed has the value that the request gets when it runs alone without
// caches.
class Harness {
 public:
  struct Request {
    SequenceRequest request;
    std::vector<int32_t> generated;
    bool finished = false;
    bool aborted = false;
    std::unique_ptr<ReferenceDecoder> reference;
    int64_t next_row = 0;            // where its rows go on unless it was preempted
    std::vector<int> prompt_logits;  // how often each prompt row's logits were read
    RequestFacts facts;              // at its end
  };

  Harness(FakeModel model, SchedulerConfig config)
      : model_(std::move(model)),
        scheduler(with_model(config, model_)),
        decoder_(model_, config.page_size, config.num_pages[kWindow],
                 config.num_pages.size() > kCompressed ? config.num_pages[kCompressed] : 1, config.max_num_seqs) {}

  RequestId submit(std::vector<int32_t> prompt, int64_t max_tokens, ReplayMode replay = ReplayMode::kExact,
                   int64_t priority = 0, bool reads_prompt_logits = false) {
    SequenceRequest request;
    request.id = next_id_++;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    request.replay = replay;
    request.priority = priority;
    request.needs_every_row = request.reads_prompt_logits = reads_prompt_logits;
    return submit(std::move(request));
  }
  RequestId submit(SequenceRequest request) {
    const RequestId id = request.id;
    Request& entry = requests[id];
    entry.request = request;
    entry.prompt_logits.assign(request.prompt.size(), 0);
    entry.reference = std::make_unique<ReferenceDecoder>(model_, window_floors(request));
    scheduler.add(std::move(request));
    scheduler.check_integrity();
    return id;
  }

  // One step: plan, run, commit. The plan stays readable until the next one.
  const StepPlan& step() {
    const StepPlan& plan = scheduler.plan();
    scheduler.check_integrity();
    check_plan(plan);
    prepare_references(plan);
    const std::vector<uint64_t> last = decoder_.run(plan);
    compare();
    std::vector<SequenceResult> results;
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      const ScheduledSequence& s = plan.sequences[i];
      Request& entry = requests.at(s.id);
      if (entry.aborted) continue;
      read_prompt_logits(s, entry);
      const bool complete = s.start + s.num_rows == static_cast<int64_t>(s.tokens.size());
      if (!complete) continue;
      SequenceResult result{s.id, std::nullopt, false};
      EXPECT_EQ(s.samples, entry.request.max_tokens > 0);
      if (s.samples) {
        result.token = model_.sample(last[i]);
        entry.generated.push_back(*result.token);
      }
      result.finished = static_cast<int64_t>(entry.generated.size()) == entry.request.max_tokens;
      entry.finished = result.finished;
      results.push_back(result);
    }
    if (before_commit) before_commit(plan);
    std::erase_if(results, [&](const SequenceResult& result) { return requests.at(result.id).aborted; });
    scheduler.commit(results);
    scheduler.check_integrity();
    for (const SequenceResult& result : results) {
      if (result.finished) finish(requests.at(result.id));
    }
    ++steps;
    return plan;
  }
  void run_all(int64_t max_steps = 100000) {
    while (scheduler.has_unfinished() && max_steps-- > 0) step();
    EXPECT_FALSE(scheduler.has_unfinished()) << "requests starve";
    expect_all_free();
  }
  void abort(RequestId id) {
    Request& entry = requests.at(id);
    EXPECT_EQ(scheduler.abort(id), !entry.finished && !entry.aborted);
    entry.aborted = !entry.finished;
    scheduler.check_integrity();
  }
  void expect_all_free() const {
    for (size_t g = 0; g < model_.facts.groups.size(); ++g) {
      const auto group = static_cast<int32_t>(g);
      const PageStats stats = scheduler.page_stats(group);
      EXPECT_EQ(stats.free_pages, stats.num_pages) << "pages are lost in group " << group;
    }
  }
  // The tokens a request gets alone.
  std::vector<int32_t> alone(const SequenceRequest& request) const {
    ReferenceDecoder reference(model_, window_floors(request));
    std::vector<int32_t> tokens = request.prompt;
    std::vector<int32_t> generated;
    while (static_cast<int64_t>(generated.size()) < request.max_tokens) {
      reference.extend(tokens);
      generated.push_back(model_.sample(reference.last()));
      tokens.push_back(generated.back());
    }
    return generated;
  }

 private:
  FakeModel model_;
  RequestId next_id_ = 1;

 public:
  Scheduler scheduler;
  std::map<RequestId, Request> requests;
  std::function<void(const StepPlan&)> before_commit;
  int64_t steps = 0;

 private:
  static SchedulerConfig with_model(SchedulerConfig config, const FakeModel& model) {
    config.model = model.facts;
    config.num_pages.resize(model.facts.groups.size());
    return config;
  }

  std::vector<int64_t> window_floors(const SequenceRequest& request) const {
    const ModelFacts& facts = model_.facts;
    std::vector<int64_t> floors(static_cast<size_t>(facts.num_layers()), 0);
    if (request.replay != ReplayMode::kBounded || request.needs_every_row || facts.num_encoder_layers == 0)
      return floors;
    const int64_t floor = std::max<int64_t>(static_cast<int64_t>(request.prompt.size()) - facts.window(), 0);
    std::fill(floors.begin() + facts.num_encoder_layers, floors.end(), floor);
    return floors;
  }

  void check_plan(const StepPlan& plan) {
    EXPECT_LE(plan.num_rows, scheduler.config().max_num_batched_tokens);
    std::set<int32_t> slots;
    bool prefill_seen = false;
    for (const ScheduledSequence& s : plan.sequences) {
      EXPECT_TRUE(slots.insert(s.state_slot).second) << "two sequences share slot " << s.state_slot;
      EXPECT_GE(s.state_slot, 0);
      EXPECT_LT(s.state_slot, scheduler.config().max_num_seqs);
      EXPECT_GE(s.num_rows, 1);
      EXPECT_LE(s.start + s.num_rows, static_cast<int64_t>(s.tokens.size()));
      EXPECT_EQ(s.prompt_length, static_cast<int64_t>(requests.at(s.id).request.prompt.size()));
      // A preempted request computes generated tokens again in chunks, which may have one row too.
      const bool decode = s.start >= s.prompt_length && s.start + 1 == static_cast<int64_t>(s.tokens.size());
      EXPECT_FALSE(decode && prefill_seen) << "decode rows come first";
      prefill_seen = prefill_seen || !decode;
      EXPECT_TRUE(!decode || s.row_plan == nullptr) << "decode rows are never trimmed";
      EXPECT_TRUE(!requests.at(s.id).request.needs_every_row || s.row_plan == nullptr);
      EXPECT_TRUE(!s.samples || s.first_logits_row < s.num_rows);
    }
  }

  // A bounded rebuild is an approximation: from the hit on its request equals the plain model that is given the same
  // cached keys and window floors. Everything else equals the request run cold and alone.
  void prepare_references(const StepPlan& plan) {
    for (const ScheduledSequence& s : plan.sequences) {
      Request& entry = requests.at(s.id);
      const bool starts = entry.next_row == 0 || s.start < entry.next_row;
      if (starts && bounded_rebuild()) {
        std::vector<int64_t> floors = window_floors(entry.request);
        if (s.publish_from > 0) {
          for (int64_t& floor : floors) floor = std::max(floor, s.publish_from - model_.facts.window());
        }
        entry.reference = std::make_unique<ReferenceDecoder>(
            model_, floors, s.publish_from > 0 ? decoder_.adopted(plan, s) : AdoptedPrefix{});
      }
      entry.next_row = s.start + s.num_rows;
      entry.reference->extend(s.tokens);
    }
  }
  bool bounded_rebuild() const { return scheduler.config().prefix_rebuild == PrefixRebuild::kBounded; }

  void compare() {
    for (const PagedDecoder::Row& row : decoder_.computed) {
      const Request& entry = requests.at(row.id);
      if (entry.request.replay == ReplayMode::kStep && row.layer >= model_.facts.num_encoder_layers)
        continue;  // depends on chunks
      ASSERT_EQ(row.output, entry.reference->output(row.layer, row.position))
          << "request " << row.id << " layer " << row.layer << " row " << row.position << " differs from running alone";
    }
  }

  void read_prompt_logits(const ScheduledSequence& s, Request& entry) {
    if (!entry.request.reads_prompt_logits) return;
    for (int64_t row = s.first_logits_row; row < s.num_rows; ++row) {
      if (s.start + row < s.prompt_length) ++entry.prompt_logits[static_cast<size_t>(s.start + row)];
    }
  }

  void finish(Request& entry) {
    const SequenceRequest& request = entry.request;
    const auto prompt_length = static_cast<int64_t>(request.prompt.size());
    const RequestFacts* facts = scheduler.facts(request.id);
    ASSERT_NE(facts, nullptr);
    entry.facts = *facts;
    if (request.reads_prompt_logits) {
      for (int64_t p = 0; p < prompt_length; ++p)
        EXPECT_EQ(entry.prompt_logits[static_cast<size_t>(p)], 1) << "prompt row " << p;
    }
    // The table of replay.md: rows per replay layer for one run of the prompt, whatever its chunks.
    const int64_t num_replay = model_.facts.num_encoder_layers == 0 ? 0 : model_.facts.num_replay_layers();
    for (int64_t k = 1; k <= num_replay; ++k) {
      int64_t bound = prompt_length;
      if (request.needs_every_row || request.replay == ReplayMode::kStep) continue;
      if (request.replay == ReplayMode::kBounded) bound = std::min(prompt_length, model_.facts.window());
      if (request.replay == ReplayMode::kExact) {
        bound = std::min(prompt_length, 1 + (num_replay - k) * (model_.facts.window() - 1));
      }
      EXPECT_LE(facts->replay_rows_by_layer[static_cast<size_t>(k - 1)], bound * (1 + facts->preemptions))
          << "replay layer " << k;
    }
  }

  PagedDecoder decoder_;
};

inline std::vector<int32_t> make_prompt(int64_t length, int32_t seed = 0) {
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < length; ++i) prompt.push_back(static_cast<int32_t>(mix(seed, i) % 50));
  return prompt;
}

}  // namespace reprise::testing
