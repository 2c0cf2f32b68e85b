#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "reprise/config.h"
#include "reprise/model_facts.h"
#include "reprise/step_plan.h"
#include "scheduler/cache_group.h"
#include "scheduler/page_pool.h"
#include "scheduler/prefix_cache.h"
#include "scheduler/replay_plan.h"
#include "scheduler/sequence.h"

namespace reprise {

struct SchedulerConfig {
  ModelFacts model;
  int64_t max_num_seqs = 64;              // sequences running at once; state slots
  int64_t max_num_batched_tokens = 2048;  // rows per step
  int64_t max_model_len = 0;              // prompt + generated tokens
  int64_t max_waiting = 0;                // waiting requests before add() refuses; 0 = no limit
  int64_t page_size = 64;                 // tokens; a multiple of every ratio
  std::vector<int64_t> num_pages;         // per cache group, the pad page included
  bool enable_prefix_caching = false;
  PrefixRebuild prefix_rebuild = PrefixRebuild::kAuto;
  uint64_t hash_seed = 0;  // of the block hashes; drawn at random where prompts come from others
};

// What a step brought one scheduled sequence. A sequence that only ran part of its prompt brings neither.
struct SequenceResult {
  RequestId id = 0;
  std::optional<int32_t> token;
  bool finished = false;
};

struct SchedulerTotals {
  int64_t steps = 0;         // committed
  int64_t num_finished = 0;  // aborted ones included
  int64_t prompt_rows = 0;
  int64_t cached_rows = 0;
  int64_t encoder_rows_run = 0;
  std::vector<int64_t> replay_rows_by_layer;
  int64_t generated_tokens = 0;
  int64_t preemptions = 0;
};

// Decides what each step runs. Integers only; used from one thread at a time.
//
// A step takes decode rows first, then prompt chunks, each in the order of priority and arrival. When pages run out the
// latest running request of the lowest priority goes back to waiting and later recomputes its rows. A running request
// that is itself the last in order keeps its pages and waits. A later request never holds up the first in order for
// good, so every request finishes.
class Scheduler {
 public:
  explicit Scheduler(SchedulerConfig config);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Queues a request. Throws std::invalid_argument, and changes nothing, for one that can never fit and when the queue
  // is full.
  void add(SequenceRequest request);

  // The next step; no sequences when nothing can run. The plan is valid until the next call. A plan that is never
  // committed is dropped: its rows are planned again, and its block table updates are repeated in the next plan.
  const StepPlan& plan();

  // After the step ran. Results in the plan's order; sequences that bring neither a token nor an end may be left out,
  // and results of requests aborted since are ignored. Frees what finished. Blocks that are complete now enter the
  // prefix cache, so a request whose rows went wrong is aborted first.
  void commit(std::span<const SequenceResult> results);

  // After the step failed on its way: its requests go back to waiting and recompute their rows, as after a preemption,
  // since nobody knows which of them reached the caches.
  void abandon();

  // Ends a request wherever it is; its pages are free at once. False when there is no such unfinished request.
  bool abort(RequestId id);
  std::vector<RequestId> abort_all();

  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  bool has_unfinished() const { return !sequences_.empty(); }
  const SchedulerTotals& totals() const { return totals_; }
  // Of an unfinished request, or of one that ended since the last plan(); null for others.
  const RequestFacts* facts(RequestId id) const;
  PageStats page_stats(int32_t group) const;
  const SchedulerConfig& config() const { return config_; }

  // Throws std::logic_error when pools, block tables, slots and queues disagree.
  void check_integrity() const;

 private:
  struct RunsBefore {
    bool operator()(const Sequence* a, const Sequence* b) const { return runs_before(*a, *b); }
  };

  enum class Admission { kAdmitted, kNoRoom, kLater };

  void schedule_decodes();
  void schedule_prefills();
  void admit_before(const Sequence* limit);
  Admission admit(Sequence& sequence);
  int64_t max_hit_blocks(const Sequence& sequence) const;
  void look_up(Sequence& sequence) const;
  PrefixHit make_hit(const Sequence& sequence, int64_t num_blocks) const;
  void publish(Sequence& sequence);
  std::span<const int32_t> block_tokens(const Sequence& sequence, int64_t block) const;
  void hash_blocks(Sequence& sequence, int64_t num_blocks) const;
  void run_chunk(Sequence& sequence);
  void schedule(Sequence& sequence, int64_t num_rows);
  bool grow(Sequence& sequence, int64_t num_rows);
  void preempt(size_t running_index);
  void release(Sequence& sequence);
  void retire(Sequence& sequence);
  void count_prompt_rows(Sequence& sequence, const ScheduledSequence& scheduled);

  SchedulerConfig config_;
  std::vector<GroupPages> groups_;
  std::deque<PagePool> pools_;               // per group; before the sequences, whose pages return to them
  size_t cacheable_group_ = 0;               // where there is a prefix cache
  std::optional<PrefixCache> prefix_cache_;  // of the cacheable group
  PrefixRebuild prefix_rebuild_;             // never kAuto
  std::unordered_map<RequestId, std::unique_ptr<Sequence>> sequences_;
  std::vector<std::unique_ptr<Sequence>>
      retired_;                     // ended since the last plan(), whose spans may still point to their tokens
  std::vector<Sequence*> running_;  // in the order they are served
  std::set<Sequence*, RunsBefore> waiting_;
  std::vector<int32_t> free_slots_;
  int64_t next_arrival_ = 0;

  // The step being planned or run.
  StepPlan plan_;
  std::vector<Sequence*> scheduled_;  // beside plan_.sequences; null once aborted
  std::vector<Sequence*> prefills_;
  std::vector<BlockHash> pending_blocks_;  // complete once the step has run
  std::vector<int64_t> wanted_entries_;    // per group, of the request that grows
  int64_t step_ = 0;
  int64_t budget_ = 0;  // rows the step may still take
  bool admission_open_ = false;
  int64_t num_deferred_ = 0;  // requests that wait for a block of this step
  bool in_flight_ = false;    // planned and not committed

  SchedulerTotals totals_;
};

}  // namespace reprise
