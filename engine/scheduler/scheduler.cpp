#include "scheduler/scheduler.h"

#include <algorithm>
#include <limits>

#include "reprise/error.h"

namespace reprise {
namespace {

const SchedulerConfig& checked(const SchedulerConfig& config) {
  const ModelFacts& model = config.model;
  REPRISE_REQUIRE(model.num_layers() >= 1 && model.num_encoder_layers >= 0 &&
                      model.num_encoder_layers <= model.num_layers() && !model.groups.empty(),
                  "[scheduler] wanted at least one layer and cache group and 0 to num_layers encoder layers but got ",
                  model.num_layers(), " layers, ", model.groups.size(), " groups, ", model.num_encoder_layers,
                  " encoder layers");
  REPRISE_REQUIRE(config.max_num_seqs >= 1, "[scheduler] wanted max_num_seqs >= 1 but got ", config.max_num_seqs);
  REPRISE_REQUIRE(
      config.max_num_batched_tokens >= 1 && config.max_num_batched_tokens <= std::numeric_limits<int32_t>::max(),
      "[scheduler] wanted max_num_batched_tokens from 1 to 2^31 - 1 but got ", config.max_num_batched_tokens);
  REPRISE_REQUIRE(config.max_model_len >= 1, "[scheduler] wanted max_model_len >= 1 but got ", config.max_model_len);
  REPRISE_REQUIRE(config.max_waiting >= 0, "[scheduler] wanted max_waiting >= 0 but got ", config.max_waiting);
  const int64_t ratio = model.max_ratio();
  REPRISE_REQUIRE(config.page_size >= 1 && config.page_size % ratio == 0,
                  "[scheduler] wanted a page_size that is a multiple of the compress ratio ", ratio, " but got ",
                  config.page_size);
  REPRISE_REQUIRE(config.num_pages.size() == model.groups.size(), "[scheduler] wanted page counts of ",
                  model.groups.size(), " cache groups but got ", config.num_pages.size());
  for (size_t group = 0; group < model.groups.size(); ++group) {
    REPRISE_REQUIRE(config.num_pages[group] >= 2, "[scheduler] wanted at least one ", model.groups[group].name,
                    " page besides the pad page but got ", config.num_pages[group] - 1);
  }
  REPRISE_REQUIRE(
      std::count_if(model.groups.begin(), model.groups.end(), [](const auto& g) { return g.cacheable; }) <= 1,
      "[scheduler] wanted at most one cacheable group");
  return config;
}

}  // namespace

Scheduler::Scheduler(SchedulerConfig config)
    : config_(checked(config)),
      prefix_rebuild_(config_.prefix_rebuild == PrefixRebuild::kBounded ? PrefixRebuild::kBounded
                                                                        : PrefixRebuild::kExact) {
  const auto& groups = config_.model.groups;
  for (size_t group = 0; group < groups.size(); ++group) {
    groups_.push_back({config_.page_size, config_.num_pages[group], groups[group].window});
    pools_.emplace_back(config_.num_pages[group]);
  }
  wanted_entries_.resize(groups.size());
  // Without a cacheable group nothing that outlives the window could be shared.
  const auto cacheable = std::find_if(groups.begin(), groups.end(), [](const auto& g) { return g.cacheable; });
  if (config_.enable_prefix_caching && cacheable != groups.end()) {
    cacheable_group_ = static_cast<size_t>(cacheable - groups.begin());
    prefix_cache_.emplace(pools_[cacheable_group_], config_.page_size);
  }
  for (int64_t slot = config_.max_num_seqs - 1; slot >= 0; --slot) free_slots_.push_back(static_cast<int32_t>(slot));
  const auto seats = static_cast<size_t>(config_.max_num_seqs);
  running_.reserve(seats);
  scheduled_.reserve(seats);
  prefills_.reserve(seats);
  plan_.sequences.reserve(seats);
  plan_.block_table_updates.reserve(groups.size() * seats);
  totals_.replay_rows_by_layer.assign(static_cast<size_t>(config_.model.num_replay_layers()), 0);
}

Scheduler::~Scheduler() = default;

const StepPlan& Scheduler::plan() {
  retired_.clear();
  if (!in_flight_) plan_.block_table_updates.clear();
  plan_.sequences.clear();
  plan_.num_rows = 0;
  scheduled_.clear();
  pending_blocks_.clear();
  num_deferred_ = 0;
  in_flight_ = true;
  ++step_;
  budget_ = config_.max_num_batched_tokens;
  admission_open_ = true;
  schedule_decodes();
  schedule_prefills();
  return plan_;
}

void Scheduler::schedule_decodes() {
  prefills_.clear();
  // Victims stand behind the row they make room for, so no scheduled row is ever taken back.
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (!sequence.is_decode()) {
      prefills_.push_back(&sequence);
      continue;
    }
    if (budget_ == 0) continue;
    while (!grow(sequence, 1) && running_.size() - 1 > i) preempt(running_.size() - 1);
    if (grow(sequence, 1)) {
      schedule(sequence, 1);
    } else {
      admission_open_ = false;  // pages that come free are for this one
    }
  }
}

void Scheduler::schedule_prefills() {
  for (Sequence* sequence : prefills_) {
    if (sequence->state_slot < 0) continue;  // preempted meanwhile
    admit_before(sequence);
    if (budget_ > 0) run_chunk(*sequence);
  }
  admit_before(nullptr);
}

// A chunk of a running prompt: as many rows as the budget and the window pages allow.
void Scheduler::run_chunk(Sequence& sequence) {
  // Groups without a window hold pages for all of its tokens already.
  const auto fitting_rows = [&] {
    int64_t rows = sequence.num_remaining();
    for (size_t group = 0; group < groups_.size(); ++group) {
      if (groups_[group].window == 0) continue;
      const int64_t entries = sequence.tables[group].num_entries() + pools_[group].num_free();
      rows = std::min(rows, entries * config_.page_size - sequence.num_computed);
    }
    return rows;
  };
  // Makes room at the expense of later requests that have no row in this step yet.
  for (size_t i = running_.size(); fitting_rows() <= 0 && running_[i - 1] != &sequence; --i) {
    if (running_[i - 1]->scheduled_step != step_) preempt(i - 1);
  }
  const int64_t num_rows = std::min(budget_, fitting_rows());
  if (num_rows <= 0) {
    admission_open_ = false;
    return;
  }
  const bool grown = grow(sequence, num_rows);
  REPRISE_ENSURE(grown, "request ", sequence.id, " holds no pages for its ", sequence.num_tokens(), " tokens");
  schedule(sequence, num_rows);
}

// Pages for the next `num_rows` rows in every group; in those without a window for all known tokens. All or nothing.
bool Scheduler::grow(Sequence& sequence, int64_t num_rows) {
  bool enough = true;
  bool any = false;
  for (size_t group = 0; group < groups_.size(); ++group) {
    const int64_t held = sequence.tables[group].num_entries();
    const int64_t rows = groups_[group].window > 0 ? sequence.num_computed + num_rows : sequence.num_tokens();
    wanted_entries_[group] = std::max(held, groups_[group].entries_for(rows));
    enough = enough && wanted_entries_[group] - held <= pools_[group].num_free();
    any = any || wanted_entries_[group] > held;
  }
  if (!any || !enough) return enough;
  for (size_t group = 0; group < groups_.size(); ++group) {
    BlockTable& table = sequence.tables[group];
    const int64_t held = table.num_entries();
    table.grow_to(wanted_entries_[group], pools_[group]);
    for (int64_t entry = held; entry < table.num_entries(); ++entry) {
      plan_.block_table_updates.push_back({.group = static_cast<int32_t>(group),
                                           .state_slot = sequence.state_slot,
                                           .index = static_cast<int32_t>(entry),
                                           .page = table.page(entry)});
    }
  }
  return true;
}

void Scheduler::schedule(Sequence& sequence, int64_t num_rows) {
  const int64_t start = sequence.num_computed;
  const int64_t end = start + num_rows;
  ScheduledSequence& scheduled = plan_.sequences.emplace_back();
  scheduled.id = sequence.id;
  scheduled.state_slot = sequence.state_slot;
  scheduled.tokens = sequence.tokens;
  scheduled.prompt_length = sequence.prompt_length;
  scheduled.start = start;
  scheduled.num_rows = static_cast<int32_t>(num_rows);
  scheduled.publish_from = sequence.publish_from;
  scheduled.samples = end == sequence.num_tokens() && sequence.max_tokens > 0;
  scheduled.first_logits_row = static_cast<int32_t>(scheduled.samples ? num_rows - 1 : num_rows);
  if (sequence.reads_prompt_logits && sequence.prompt_logits_read < std::min(end, sequence.prompt_length)) {
    scheduled.first_logits_row = static_cast<int32_t>(std::max(sequence.prompt_logits_read - start, int64_t{0}));
  }
  if (start < sequence.prompt_length) {
    if (sequence.replay == ReplayMode::kStep && !sequence.needs_every_row) {
      // Counted to the prompt's end: generated rows that are recomputed in this chunk are never trimmed.
      const int64_t prompt_rows = std::min(end, sequence.prompt_length) - start;
      RowPlan rows = make_step_row_plan(start, prompt_rows, config_.model);
      if (!trims_nothing(rows)) scheduled.row_plan = std::make_shared<const RowPlan>(std::move(rows));
    } else {
      scheduled.row_plan = sequence.row_plan;
    }
  }
  if (prefix_cache_ && start < sequence.prompt_length) {
    const int64_t blocks = std::min(end / config_.page_size, static_cast<int64_t>(sequence.block_hashes.size()));
    for (int64_t block = sequence.num_published; block < blocks; ++block) {
      pending_blocks_.push_back(sequence.block_hashes[static_cast<size_t>(block)]);
    }
  }
  sequence.scheduled_step = step_;
  scheduled_.push_back(&sequence);
  plan_.num_rows += static_cast<int32_t>(num_rows);
  budget_ -= num_rows;
}

void Scheduler::commit(std::span<const SequenceResult> results) {
  REPRISE_ENSURE(in_flight_, "commit without a plan");
  // Check everything before anything changes.
  size_t next = 0;
  for (size_t i = 0; i < scheduled_.size(); ++i) {
    const ScheduledSequence& scheduled = plan_.sequences[i];
    const SequenceResult* result =
        next < results.size() && results[next].id == scheduled.id ? &results[next++] : nullptr;
    if (scheduled_[i] == nullptr) continue;
    const Sequence& sequence = *scheduled_[i];
    const bool finished = result != nullptr && result->finished;
    const bool has_token = result != nullptr && result->token.has_value();
    const bool complete = scheduled.start + scheduled.num_rows == sequence.num_tokens();
    REPRISE_REQUIRE(!has_token || scheduled.samples, "[commit] wanted no token for request ", sequence.id,
                    ", which does not sample in this step");
    REPRISE_REQUIRE(!complete || finished || has_token, "[commit] wanted a token or an end for request ", sequence.id,
                    ", which ran all its tokens, but got neither");
    REPRISE_REQUIRE(finished || !has_token || sequence.num_tokens() - sequence.prompt_length + 1 < sequence.max_tokens,
                    "[commit] wanted request ", sequence.id, " to end with its token ", sequence.max_tokens,
                    " (max_tokens)");
  }
  REPRISE_REQUIRE(next == results.size(), "[commit] wanted results in the plan's order but got one for request ",
                  next < results.size() ? results[next].id : 0, " out of it");

  bool any_finished = false;
  next = 0;
  for (size_t i = 0; i < scheduled_.size(); ++i) {
    const ScheduledSequence& scheduled = plan_.sequences[i];
    const SequenceResult* result =
        next < results.size() && results[next].id == scheduled.id ? &results[next++] : nullptr;
    if (scheduled_[i] == nullptr) continue;
    Sequence& sequence = *scheduled_[i];
    if (scheduled.start < sequence.prompt_length) count_prompt_rows(sequence, scheduled);
    sequence.num_computed += scheduled.num_rows;
    if (prefix_cache_) publish(sequence);
    for (size_t group = 0; group < groups_.size(); ++group) {
      if (groups_[group].window > 0)
        sequence.tables[group].release_below(groups_[group].first_live_entry(sequence.num_computed));
    }
    if (result == nullptr) continue;
    if (result->token.has_value()) {
      sequence.tokens.push_back(*result->token);
      ++sequence.facts.generated_tokens;
      ++totals_.generated_tokens;
    }
    if (result->finished) {
      release(sequence);
      retire(sequence);
      any_finished = true;
    }
  }
  if (any_finished) std::erase_if(running_, [](const Sequence* sequence) { return sequence->state_slot < 0; });
  scheduled_.clear();
  in_flight_ = false;
  ++totals_.steps;
}

void Scheduler::abandon() {
  for (const ScheduledSequence& scheduled : plan_.sequences) {
    std::erase_if(plan_.block_table_updates,
                  [&](const BlockTableUpdate& update) { return update.state_slot == scheduled.state_slot; });
  }
  for (const Sequence* sequence : scheduled_) {
    if (sequence == nullptr) continue;
    preempt(static_cast<size_t>(std::find(running_.begin(), running_.end(), sequence) - running_.begin()));
  }
  scheduled_.clear();
}

void Scheduler::count_prompt_rows(Sequence& sequence, const ScheduledSequence& scheduled) {
  const int64_t end = std::min(scheduled.start + scheduled.num_rows, sequence.prompt_length);
  const int64_t num_rows = end - scheduled.start;
  if (sequence.reads_prompt_logits) sequence.prompt_logits_read = std::max(sequence.prompt_logits_read, end);
  sequence.facts.encoder_rows_run += num_rows;
  totals_.encoder_rows_run += num_rows;
  for (int64_t k = 0; k < config_.model.num_replay_layers(); ++k) {
    const int64_t rows =
        count_computed(scheduled.row_plan.get(), config_.model.num_encoder_layers + k, scheduled.start, num_rows);
    sequence.facts.replay_rows_by_layer[static_cast<size_t>(k)] += rows;
    totals_.replay_rows_by_layer[static_cast<size_t>(k)] += rows;
  }
}

void Scheduler::preempt(size_t running_index) {
  Sequence& sequence = *running_[running_index];
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(running_index));
  release(sequence);
  sequence.num_computed = 0;
  ++sequence.facts.preemptions;
  ++totals_.preemptions;
  waiting_.insert(&sequence);
  admission_open_ = false;  // the pages it gave back are for the one that asked
}

void Scheduler::release(Sequence& sequence) {
  for (BlockTable& table : sequence.tables) table.clear();
  free_slots_.push_back(sequence.state_slot);
  sequence.state_slot = -1;
}

// Takes an ended sequence out of the books; its tokens and facts stay until the next plan.
void Scheduler::retire(Sequence& sequence) {
  const auto found = sequences_.find(sequence.id);
  retired_.push_back(std::move(found->second));
  sequences_.erase(found);
  ++totals_.num_finished;
}

bool Scheduler::abort(RequestId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return false;
  Sequence& sequence = *found->second;
  if (sequence.state_slot < 0) {
    waiting_.erase(&sequence);
  } else {
    std::replace(scheduled_.begin(), scheduled_.end(), &sequence, static_cast<Sequence*>(nullptr));
    std::erase(running_, &sequence);
    release(sequence);
  }
  retire(sequence);
  return true;
}

std::vector<RequestId> Scheduler::abort_all() {
  std::vector<RequestId> ids;
  ids.reserve(sequences_.size());
  for (const auto& [id, sequence] : sequences_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (RequestId id : ids) abort(id);
  return ids;
}

const RequestFacts* Scheduler::facts(RequestId id) const {
  const auto found = sequences_.find(id);
  if (found != sequences_.end()) return &found->second->facts;
  // The latest first: an id may come back once its request has ended.
  for (auto retired = retired_.rbegin(); retired != retired_.rend(); ++retired) {
    if ((*retired)->id == id) return &(*retired)->facts;
  }
  return nullptr;
}

PageStats Scheduler::page_stats(int32_t group) const {
  const PagePool& pool = pools_.at(static_cast<size_t>(group));
  return {groups_[static_cast<size_t>(group)].usable_pages(), pool.num_free(), pool.num_cached(), config_.page_size};
}

}  // namespace reprise
