#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "reprise/request.h"
#include "reprise/step_plan.h"
#include "scheduler/block_hash.h"
#include "scheduler/block_table.h"

namespace reprise {

// What the scheduler needs to know of a request.
struct SequenceRequest {
  RequestId id = 0;             // unique among unfinished requests
  std::vector<int32_t> prompt;  // at least one token
  int64_t max_tokens = 0;       // 0 = run the prompt only
  int64_t priority = 0;         // lower runs first
  ReplayMode replay = ReplayMode::kBounded;
  bool needs_every_row = false;      // every row's output is read (prompt logprobs, hidden states): never trimmed
  bool reads_prompt_logits = false;  // every prompt row's logits are read, each once
  uint64_t cache_salt = 0;           // whatever else changes KV; requests share cached pages only under the same salt
};

// What running a request took. Prompt rows only; rows that ran again after a preemption count again.
struct RequestFacts {
  int64_t prompt_rows = 0;
  int64_t cached_rows = 0;                              // prompt rows found in the prefix cache when it first ran
  PrefixRebuild prefix_rebuild = PrefixRebuild::kAuto;  // of what it found; kAuto where it found nothing
  int64_t encoder_rows_run = 0;
  std::vector<int64_t> replay_rows_by_layer;  // rows computed, per replay layer
  int64_t generated_tokens = 0;
  int64_t preemptions = 0;
};

// Rows that a request runs in all: its last token is never run.
inline int64_t max_rows(int64_t prompt_length, int64_t max_tokens) {
  return prompt_length + std::max<int64_t>(max_tokens - 1, 0);
}

// Leading tokens of a waiting request that it need not publish again, and the rows that it runs all the same.
struct PrefixHit {
  int64_t num_tokens = 0;
  std::shared_ptr<const RowPlan> row_plan;
  int64_t first_row = 0;
};

// What the prefix cache has for a waiting request. Good for as long as the cache stays as it is: a request that waits
// for room is not looked up again in every step.
struct PrefixLookup {
  uint64_t version = 0;  // of the cache; 0 = not looked up
  int64_t max_blocks = 0;
  std::vector<int32_t> pages;  // of its leading blocks
  PrefixHit hit;
};

// A request on its way through the scheduler. Waiting ones hold no pages and no state slot.
struct Sequence {
  RequestId id = 0;
  std::vector<int32_t> tokens;  // prompt first
  int64_t prompt_length = 0;
  int64_t max_tokens = 0;
  int64_t priority = 0;
  int64_t arrival = 0;
  ReplayMode replay = ReplayMode::kOff;
  bool needs_every_row = false;
  bool reads_prompt_logits = false;
  std::shared_ptr<const RowPlan> prompt_plan;  // null: trims nothing
  BlockHash root;                              // what its first block is chained to
  std::vector<BlockHash> block_hashes;         // of its complete blocks: the prompt's at once, later ones as they fill

  int64_t prompt_logits_read = 0;  // prompt rows whose logits were delivered, kept through preemption
  bool was_admitted = false;
  int64_t first_hit = 0;  // tokens found in the prefix cache when it first ran
  RequestFacts facts;
  PrefixLookup lookup;  // while waiting

  // While running.
  int32_t state_slot = -1;
  int64_t num_computed = 0;  // rows [0, num_computed) are in the caches, or need not be
  int64_t publish_from = 0;
  int64_t first_row = 0;                    // where this run started
  int64_t num_published = 0;                // leading blocks that were offered to the prefix cache or came from it
  std::shared_ptr<const RowPlan> row_plan;  // of this run, for chunks that start below the prompt's end
  int64_t scheduled_step = -1;
  std::vector<BlockTable> tables;  // per cache group

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
  int64_t max_rows() const { return reprise::max_rows(prompt_length, max_tokens); }
  int64_t num_remaining() const { return num_tokens() - num_computed; }
  // One row left, and its token was sampled: every layer runs it. A prompt's last row is prefill, however short its
  // chunk.
  bool is_decode() const { return num_remaining() == 1 && num_tokens() > prompt_length; }
};

// The order in which requests are served: by priority, first come first served within one.
inline bool runs_before(const Sequence& a, const Sequence& b) {
  return a.priority != b.priority ? a.priority < b.priority : a.arrival < b.arrival;
}

}  // namespace reprise
