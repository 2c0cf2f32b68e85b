#include <algorithm>

#include "reprise/error.h"
#include "scheduler/scheduler.h"

// How requests enter: submission, admission with what the prefix cache has for them, and what they leave there.

namespace reprise {

void Scheduler::add(SequenceRequest request) {
  const auto prompt_length = static_cast<int64_t>(request.prompt.size());
  REPRISE_REQUIRE(prompt_length >= 1, "[submit] wanted at least one prompt token but got none");
  REPRISE_REQUIRE(request.max_tokens >= 0, "[submit] wanted max_tokens >= 0 but got ", request.max_tokens);
  REPRISE_REQUIRE(sequences_.count(request.id) == 0, "[submit] wanted a new request id but ", request.id,
                  " is unfinished");
  REPRISE_REQUIRE(
      request.max_tokens <= config_.max_model_len && prompt_length + request.max_tokens <= config_.max_model_len,
      "[submit] wanted at most ", config_.max_model_len, " tokens (max_model_len) but got a prompt of ", prompt_length,
      " and max_tokens ", request.max_tokens);
  const int64_t rows = max_rows(prompt_length, request.max_tokens);
  for (size_t group = 0; group < groups_.size(); ++group) {
    const GroupPages& pages = groups_[group];
    const int64_t wanted = pages.max_resident_pages(rows, 1);
    REPRISE_REQUIRE(wanted <= pages.usable_pages(), "[submit] wanted at most ", pages.usable_pages(), " pages of ",
                    pages.page_size, " tokens in the ", config_.model.groups[group].name, " cache but a prompt of ",
                    prompt_length, " with max_tokens ", request.max_tokens, " needs ", wanted,
                    "; shorten it or give the caches more memory");
  }
  REPRISE_REQUIRE(config_.max_waiting == 0 || num_waiting() < config_.max_waiting, "[submit] wanted fewer than ",
                  config_.max_waiting, " waiting requests (max_waiting) but got ", num_waiting(),
                  "; submit again when some have finished");

  auto sequence = std::make_unique<Sequence>();
  sequence->id = request.id;
  sequence->tokens = std::move(request.prompt);
  sequence->prompt_length = prompt_length;
  sequence->max_tokens = request.max_tokens;
  sequence->priority = request.priority;
  sequence->arrival = next_arrival_++;
  sequence->replay = request.replay;
  sequence->needs_every_row = request.needs_every_row || request.reads_prompt_logits;
  sequence->reads_prompt_logits = request.reads_prompt_logits;
  sequence->tables.resize(groups_.size());
  sequence->facts.prompt_rows = prompt_length;
  sequence->facts.replay_rows_by_layer.assign(static_cast<size_t>(config_.model.num_replay_layers()), 0);
  if (!sequence->needs_every_row) {
    auto plan = std::make_shared<RowPlan>(make_row_plan(request.replay, prompt_length, config_.model));
    if (!trims_nothing(*plan)) sequence->prompt_plan = std::move(plan);
  }
  if (prefix_cache_) {
    sequence->root = root_hash(config_.hash_seed, request.cache_salt);
    sequence->block_hashes.reserve(static_cast<size_t>(prompt_length / config_.page_size));
    hash_blocks(*sequence, prompt_length / config_.page_size);
  }
  // The owner first: when memory runs out nothing may be left pointing to the sequence.
  Sequence* const added = sequence.get();
  const auto owned = sequences_.emplace(request.id, std::move(sequence)).first;
  try {
    waiting_.insert(added);
  } catch (...) {
    sequences_.erase(owned);
    throw;
  }
}

// Admits waiting requests that are served before `limit` (null: all), in order, until one does not fit.
void Scheduler::admit_before(const Sequence* limit) {
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    if (!admission_open_ || budget_ == 0 || free_slots_.empty() || num_deferred_ >= config_.max_num_seqs) return;
    Sequence& sequence = **next++;  // admission takes it out of the queue
    if (limit != nullptr && !runs_before(sequence, *limit)) return;
    const Admission admission = admit(sequence);
    if (admission == Admission::kNoRoom) admission_open_ = false;
    if (admission == Admission::kLater) ++num_deferred_;
  }
}

// Starts a waiting request and schedules its first chunk. Unless it is admitted, nothing has changed.
Scheduler::Admission Scheduler::admit(Sequence& sequence) {
  look_up(sequence);
  const PrefixHit& hit = sequence.lookup.hit;
  const int64_t max_blocks = sequence.lookup.max_blocks;
  const auto matched = static_cast<int64_t>(sequence.lookup.pages.size());
  // Where this step completes the blocks that come next, waiting for them is cheaper than running them a second time.
  if (matched < max_blocks) {
    auto pending =
        std::find(pending_blocks_.begin(), pending_blocks_.end(), sequence.block_hashes[static_cast<size_t>(matched)]);
    int64_t coming = matched;
    for (; coming < max_blocks && pending != pending_blocks_.end(); ++coming, ++pending) {
      if (*pending != sequence.block_hashes[static_cast<size_t>(coming)]) break;
    }
    if (coming > matched && make_hit(sequence, coming).first_row > hit.first_row) return Admission::kLater;
  }
  const auto hit_pages =
      std::span(sequence.lookup.pages).first(static_cast<size_t>(hit.num_tokens / config_.page_size));

  // Pages for all its tokens at once in groups without a window: a prompt that starts is not stopped half way for want
  // of them. Beyond that each running request may soon want one more; without it the newcomer would be preempted at
  // once. A request that runs alone needs no reserve, add() made sure that it fits.
  const int64_t reserve = num_running();
  const int64_t first_entry = hit.first_row / config_.page_size;
  for (size_t group = 0; group < groups_.size(); ++group) {
    const GroupPages& pages = groups_[group];
    const PagePool& pool = pools_[group];
    int64_t wanted = pages.entries_for(sequence.num_tokens());
    if (pages.window > 0) {
      wanted = std::min(wanted - first_entry, pages.max_resident_pages(sequence.num_tokens(), 1));
    } else if (group == cacheable_group_) {
      // Pages that others hold are not taken from the free ones. They are counted only where that decides.
      if (wanted - static_cast<int64_t>(hit_pages.size()) + reserve > pool.num_free()) return Admission::kNoRoom;
      wanted -=
          std::count_if(hit_pages.begin(), hit_pages.end(), [&](int32_t page) { return pool.use_count(page) > 0; });
    }
    if (wanted + reserve > pool.num_free()) return Admission::kNoRoom;
  }

  waiting_.erase(&sequence);
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &sequence, RunsBefore()), &sequence);
  sequence.state_slot = free_slots_.back();
  free_slots_.pop_back();
  sequence.first_row = hit.first_row;
  sequence.num_computed = hit.first_row;
  sequence.publish_from = hit.num_tokens;
  sequence.num_published = hit.num_tokens / config_.page_size;
  sequence.row_plan = hit.row_plan != nullptr ? hit.row_plan : sequence.prompt_plan;
  if (hit.num_tokens > 0) sequence.facts.prefix_rebuild = prefix_rebuild_;
  const int64_t rows = sequence.max_rows();
  sequence.tokens.reserve(static_cast<size_t>(sequence.prompt_length + sequence.max_tokens));
  if (prefix_cache_) sequence.block_hashes.reserve(static_cast<size_t>(rows / config_.page_size));
  for (size_t group = 0; group < groups_.size(); ++group)
    sequence.tables[group].reserve(groups_[group].entries_for(rows));
  if (!sequence.was_admitted) {
    sequence.was_admitted = true;
    sequence.first_hit = hit.num_tokens;
    sequence.facts.cached_rows = hit.num_tokens;
    totals_.prompt_rows += sequence.prompt_length;
    totals_.cached_rows += hit.num_tokens;
  }
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (groups_[group].window > 0) sequence.tables[group].start_at(first_entry);
  }
  BlockTable& shared = sequence.tables[cacheable_group_];
  for (int32_t page : hit_pages) {
    plan_.block_table_updates.push_back({.group = static_cast<int32_t>(cacheable_group_),
                                         .state_slot = sequence.state_slot,
                                         .index = static_cast<int32_t>(shared.num_entries()),
                                         .page = page});
    shared.append(pools_[cacheable_group_].reference(page));
  }
  const bool grown = grow(sequence, 1);
  REPRISE_ENSURE(grown, "request ", sequence.id, " was admitted without pages");
  sequence.lookup = {};
  run_chunk(sequence);
  return Admission::kAdmitted;
}

// Leading blocks that a request may take from the prefix cache. At least one prompt token always runs.
int64_t Scheduler::max_hit_blocks(const Sequence& sequence) const {
  // Rows whose outputs are read must run. Policy kStep trims by chunk and has no plan that a rebuild could extend.
  if (!prefix_cache_ || sequence.needs_every_row || sequence.replay == ReplayMode::kStep) return 0;
  int64_t tokens = sequence.prompt_length - 1;
  if (prefix_rebuild_ == PrefixRebuild::kBounded) {
    // A request that asks for exact values takes nothing approximate.
    if (sequence.replay != ReplayMode::kBounded) return 0;
    // What a bounded rebuild computes depends on where the hit ended, so a preempted request does not continue behind
    // another one.
    if (sequence.was_admitted) tokens = std::min(tokens, sequence.first_hit);
  }
  return tokens / config_.page_size;
}

void Scheduler::look_up(Sequence& sequence) const {
  PrefixLookup& lookup = sequence.lookup;
  const int64_t max_blocks = max_hit_blocks(sequence);
  const uint64_t version = prefix_cache_ ? prefix_cache_->version() : 1;
  if (lookup.version == version && lookup.max_blocks == max_blocks) return;
  lookup.version = version;
  lookup.max_blocks = max_blocks;
  lookup.pages.clear();
  for (int64_t block = 0; block < max_blocks; ++block) {
    const int32_t page =
        prefix_cache_->find(sequence.block_hashes[static_cast<size_t>(block)], block_tokens(sequence, block));
    if (page == kPadPage) break;
    lookup.pages.push_back(page);
  }
  lookup.hit = make_hit(sequence, static_cast<int64_t>(lookup.pages.size()));
}

PrefixHit Scheduler::make_hit(const Sequence& sequence, int64_t num_blocks) const {
  if (num_blocks == 0) return {};
  const int64_t num_tokens = num_blocks * config_.page_size;
  auto plan = make_hit_row_plan(sequence.replay, sequence.prompt_length, num_tokens, prefix_rebuild_, config_.model);
  if (!plan) return {};
  const int64_t first_row = plan->layers.front().first_received;
  return {num_tokens, std::make_shared<const RowPlan>(std::move(*plan)), first_row};
}

std::span<const int32_t> Scheduler::block_tokens(const Sequence& sequence, int64_t block) const {
  return std::span(sequence.tokens)
      .subspan(static_cast<size_t>(block * config_.page_size), static_cast<size_t>(config_.page_size));
}

void Scheduler::hash_blocks(Sequence& sequence, int64_t num_blocks) const {
  while (static_cast<int64_t>(sequence.block_hashes.size()) < num_blocks) {
    const BlockHash& parent = sequence.block_hashes.empty() ? sequence.root : sequence.block_hashes.back();
    sequence.block_hashes.push_back(
        hash_block(parent, block_tokens(sequence, static_cast<int64_t>(sequence.block_hashes.size()))));
  }
}

// Makes the blocks that a request has completed known to the prefix cache.
//
// Under exact rebuild everything here is exact, whatever the request's replay mode: only encoder layers publish, every
// row is received by all of them (replay plans trim no encoder layer but the last one, and that one after it has
// published), and the rows that follow a hit were rebuilt from the full halo. Only a bounded rebuild makes published
// values approximate, and a scheduler that does bounded rebuilds never does exact ones: the setting holds for all its
// requests, and its cache dies with it.
void Scheduler::publish(Sequence& sequence) {
  for (; (sequence.num_published + 1) * config_.page_size <= sequence.num_computed; ++sequence.num_published) {
    hash_blocks(sequence, sequence.num_published + 1);
    prefix_cache_->insert(sequence.block_hashes[static_cast<size_t>(sequence.num_published)],
                          block_tokens(sequence, sequence.num_published),
                          sequence.tables[cacheable_group_].page(sequence.num_published));
  }
}

}  // namespace reprise
