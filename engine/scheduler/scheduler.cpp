#include "scheduler/scheduler.h"

#include <algorithm>
#include <limits>

#include "reprise/error.h"

namespace reprise {
namespace {

constexpr CacheGroup kGroups[] = {CacheGroup::kWindow, CacheGroup::kCompressed};

const SchedulerConfig& checked(const SchedulerConfig& config) {
  const DecoderFacts& decoder = config.decoder;
  REPRISE_REQUIRE(decoder.num_layers >= 1 && decoder.window >= 1 && decoder.num_encoder_layers >= 0 &&
                      decoder.num_encoder_layers <= decoder.num_layers,
                  "[scheduler] wanted at least one layer, a window and 0 to num_layers encoder layers but got ",
                  decoder.num_layers, " layers, window ", decoder.window, ", ", decoder.num_encoder_layers,
                  " encoder layers");
  REPRISE_REQUIRE(config.max_num_seqs >= 1, "[scheduler] wanted max_num_seqs >= 1 but got ", config.max_num_seqs);
  REPRISE_REQUIRE(
      config.max_num_batched_tokens >= 1 && config.max_num_batched_tokens <= std::numeric_limits<int32_t>::max(),
      "[scheduler] wanted max_num_batched_tokens from 1 to 2^31 - 1 but got ", config.max_num_batched_tokens);
  REPRISE_REQUIRE(config.max_model_len >= 1, "[scheduler] wanted max_model_len >= 1 but got ", config.max_model_len);
  REPRISE_REQUIRE(config.max_waiting >= 0, "[scheduler] wanted max_waiting >= 0 but got ", config.max_waiting);
  REPRISE_REQUIRE(
      config.max_compress_ratio >= 1 && config.page_size >= 1 && config.page_size % config.max_compress_ratio == 0,
      "[scheduler] wanted a page_size that is a multiple of the compress ratio ", config.max_compress_ratio,
      " but got ", config.page_size);
  REPRISE_REQUIRE(config.num_window_pages >= 2,
                  "[scheduler] wanted at least one window page besides the pad page but got ",
                  config.num_window_pages - 1);
  REPRISE_REQUIRE(!config.has_compressed_group || config.num_compressed_pages >= 2,
                  "[scheduler] wanted at least one compressed page besides the pad page but got ",
                  config.num_compressed_pages - 1);
  return config;
}

// Rows that a request runs in all: its last token is never run.
int64_t max_rows(int64_t prompt_length, int64_t max_tokens) {
  return prompt_length + std::max<int64_t>(max_tokens - 1, 0);
}

PrefixRebuild resolved_rebuild(const SchedulerConfig& config) {
  if (config.prefix_rebuild != PrefixRebuild::kAuto) return config.prefix_rebuild;
  return config.replay == ReplayMode::kBounded ? PrefixRebuild::kBounded : PrefixRebuild::kExact;
}

const char* name(CacheGroup group) { return group == CacheGroup::kWindow ? "window" : "compressed"; }

}  // namespace

Scheduler::Scheduler(SchedulerConfig config)
    : config_(checked(config)),
      groups_{CacheGroupFacts{config_.page_size, config_.num_window_pages, config_.decoder.window},
              CacheGroupFacts{config_.page_size, config_.has_compressed_group ? config_.num_compressed_pages : 1, 0}},
      pools_{PagePool(groups_[0].num_pages), PagePool(groups_[1].num_pages)},
      prefix_rebuild_(resolved_rebuild(config_)) {
  // Without a compressed group nothing that outlives the window could be shared.
  if (config_.enable_prefix_caching && config_.has_compressed_group) {
    prefix_cache_.emplace(pool(CacheGroup::kCompressed), config_.page_size);
  }
  for (int64_t slot = config_.max_num_seqs - 1; slot >= 0; --slot) free_slots_.push_back(static_cast<int32_t>(slot));
  const auto seats = static_cast<size_t>(config_.max_num_seqs);
  running_.reserve(seats);
  scheduled_.reserve(seats);
  prefills_.reserve(seats);
  plan_.sequences.reserve(seats);
  plan_.block_table_updates.reserve(2 * seats);
  totals_.replay_rows_by_layer.assign(static_cast<size_t>(config_.decoder.num_replay_layers()), 0);
}

Scheduler::~Scheduler() = default;

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
  for (CacheGroup which : kGroups) {
    if (!has_group(which)) continue;
    const CacheGroupFacts& facts = group(which);
    const int64_t wanted = facts.max_resident_pages(rows, 1);
    REPRISE_REQUIRE(wanted <= facts.usable_pages(), "[submit] wanted at most ", facts.usable_pages(), " pages of ",
                    facts.page_size, " tokens in the ", name(which), " cache but a prompt of ", prompt_length,
                    " with max_tokens ", request.max_tokens, " needs ", wanted,
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
  sequence->facts.prompt_rows = prompt_length;
  sequence->facts.replay_rows_by_layer.assign(static_cast<size_t>(config_.decoder.num_replay_layers()), 0);
  if (!sequence->needs_every_row) {
    auto plan = std::make_shared<RowPlan>(make_row_plan(request.replay, prompt_length, config_.decoder));
    if (!trims_nothing(*plan)) sequence->prompt_plan = std::move(plan);
  }
  if (prefix_cache_) {
    sequence->root = root_hash(request.cache_salt);
    sequence->block_hashes.reserve(static_cast<size_t>(prompt_length / config_.page_size));
    hash_blocks(*sequence, prompt_length / config_.page_size);
  }
  waiting_.insert(sequence.get());
  sequences_.emplace(request.id, std::move(sequence));
}

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
  const auto fitting_rows = [&] {
    const int64_t entries = sequence.table(CacheGroup::kWindow).num_entries() + pool(CacheGroup::kWindow).num_free();
    return entries * config_.page_size - sequence.num_computed;
  };
  // Makes room at the expense of later requests that have no row in this step yet.
  for (size_t i = running_.size(); fitting_rows() <= 0 && running_[i - 1] != &sequence; --i) {
    if (running_[i - 1]->scheduled_step != step_) preempt(i - 1);
  }
  const int64_t num_rows = std::min({budget_, sequence.num_remaining(), fitting_rows()});
  if (num_rows <= 0) {
    admission_open_ = false;
    return;
  }
  const bool grown = grow(sequence, num_rows);
  REPRISE_ENSURE(grown, "request ", sequence.id, " holds no compressed pages for its ", sequence.num_tokens(),
                 " tokens");
  schedule(sequence, num_rows);
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
  const int64_t max_blocks = max_hit_blocks(sequence);
  hit_pages_.clear();
  for (int64_t block = 0; block < max_blocks; ++block) {
    const int32_t page =
        prefix_cache_->find(sequence.block_hashes[static_cast<size_t>(block)], block_tokens(sequence, block));
    if (page == kPadPage) break;
    hit_pages_.push_back(page);
  }
  const auto matched = static_cast<int64_t>(hit_pages_.size());
  const PrefixHit hit = make_hit(sequence, matched);
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
  hit_pages_.resize(static_cast<size_t>(hit.num_tokens / config_.page_size));

  // Compressed pages for all its tokens at once: a prompt that starts is not stopped half way for want of them. Beyond
  // that each running request may soon want one more; without it the newcomer would be preempted at once. A request
  // that runs alone needs no reserve, add() made sure that it fits.
  const int64_t reserve = num_running();
  if (has_group(CacheGroup::kCompressed)) {
    const PagePool& compressed = pool(CacheGroup::kCompressed);
    const int64_t shared = std::count_if(hit_pages_.begin(), hit_pages_.end(),
                                         [&](int32_t page) { return compressed.use_count(page) > 0; });
    const int64_t wanted = group(CacheGroup::kCompressed).entries_for(sequence.num_tokens()) - shared;
    if (wanted + reserve > compressed.num_free()) return Admission::kNoRoom;
  }
  const CacheGroupFacts& window = group(CacheGroup::kWindow);
  const int64_t first_entry = hit.first_row / config_.page_size;
  const int64_t resident = std::min(window.entries_for(sequence.num_tokens()) - first_entry,
                                    window.max_resident_pages(sequence.num_tokens(), 1));
  if (resident + reserve > pool(CacheGroup::kWindow).num_free()) return Admission::kNoRoom;

  waiting_.erase(&sequence);
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &sequence, RunsBefore()), &sequence);
  sequence.state_slot = free_slots_.back();
  free_slots_.pop_back();
  sequence.first_row = hit.first_row;
  sequence.num_computed = hit.first_row;
  sequence.publish_from = hit.num_tokens;
  sequence.num_published = hit.num_tokens / config_.page_size;
  sequence.row_plan = hit.row_plan != nullptr ? hit.row_plan : sequence.prompt_plan;
  const int64_t rows = max_rows(sequence.prompt_length, sequence.max_tokens);
  sequence.tokens.reserve(static_cast<size_t>(sequence.prompt_length + sequence.max_tokens));
  if (prefix_cache_) sequence.block_hashes.reserve(static_cast<size_t>(rows / config_.page_size));
  for (CacheGroup which : kGroups) {
    if (has_group(which)) sequence.table(which).reserve(group(which).entries_for(rows));
  }
  if (!sequence.was_admitted) {
    sequence.was_admitted = true;
    sequence.first_hit = hit.num_tokens;
    sequence.facts.cached_rows = hit.num_tokens;
    totals_.prompt_rows += sequence.prompt_length;
    totals_.cached_rows += hit.num_tokens;
  }
  sequence.table(CacheGroup::kWindow).start_at(first_entry);
  BlockTable& compressed = sequence.table(CacheGroup::kCompressed);
  for (int32_t page : hit_pages_) {
    plan_.block_table_updates.push_back(
        {CacheGroup::kCompressed, sequence.state_slot, static_cast<int32_t>(compressed.num_entries()), page});
    compressed.append(pool(CacheGroup::kCompressed).reference(page));
  }
  const bool grown = grow(sequence, 1);
  REPRISE_ENSURE(grown, "request ", sequence.id, " was admitted without pages");
  run_chunk(sequence);
  return Admission::kAdmitted;
}

// Leading blocks that a request may take from the prefix cache. At least one prompt token always runs.
int64_t Scheduler::max_hit_blocks(const Sequence& sequence) const {
  // Rows whose outputs are read must run. Policy kStep trims by chunk and has no plan that a rebuild could extend.
  if (!prefix_cache_ || sequence.needs_every_row || sequence.replay == ReplayMode::kStep) return 0;
  int64_t tokens = sequence.prompt_length - 1;
  if (prefix_rebuild_ == PrefixRebuild::kBounded) {
    // Bounded rebuild follows bounded replay by default; a request that asks for exact values then takes nothing
    // approximate.
    if (config_.prefix_rebuild == PrefixRebuild::kAuto && sequence.replay != ReplayMode::kBounded) return 0;
    // What a bounded rebuild computes depends on where the hit ended, so a preempted request does not continue behind
    // another one.
    if (sequence.was_admitted) tokens = std::min(tokens, sequence.first_hit);
  }
  return tokens / config_.page_size;
}

Scheduler::PrefixHit Scheduler::make_hit(const Sequence& sequence, int64_t num_blocks) const {
  if (num_blocks == 0) return {};
  const int64_t num_tokens = num_blocks * config_.page_size;
  auto plan = make_hit_row_plan(sequence.replay, sequence.prompt_length, num_tokens, prefix_rebuild_, config_.decoder);
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
                          sequence.table(CacheGroup::kCompressed).page(sequence.num_published));
  }
}

// Pages for the next `num_rows` rows in every group; compressed pages at least for all known tokens. All or nothing.
bool Scheduler::grow(Sequence& sequence, int64_t num_rows) {
  std::array<int64_t, kNumCacheGroups> wanted{};
  bool enough = true;
  bool any = false;
  for (CacheGroup which : kGroups) {
    if (!has_group(which)) continue;
    const int64_t held = sequence.table(which).num_entries();
    const int64_t rows = which == CacheGroup::kWindow ? sequence.num_computed + num_rows : sequence.num_tokens();
    if (rows <= held * config_.page_size) continue;
    wanted[static_cast<size_t>(which)] = group(which).entries_for(rows);
    enough = enough && wanted[static_cast<size_t>(which)] - held <= pool(which).num_free();
    any = true;
  }
  if (!any || !enough) return enough;
  for (CacheGroup which : kGroups) {
    BlockTable& table = sequence.table(which);
    const int64_t held = table.num_entries();
    table.grow_to(wanted[static_cast<size_t>(which)], pool(which));
    for (int64_t entry = held; entry < table.num_entries(); ++entry) {
      plan_.block_table_updates.push_back({which, sequence.state_slot, static_cast<int32_t>(entry), table.page(entry)});
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
      RowPlan rows = make_step_row_plan(start, prompt_rows, config_.decoder);
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
    sequence.table(CacheGroup::kWindow)
        .release_below(group(CacheGroup::kWindow).first_live_entry(sequence.num_computed));
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

void Scheduler::count_prompt_rows(Sequence& sequence, const ScheduledSequence& scheduled) {
  const int64_t end = std::min(scheduled.start + scheduled.num_rows, sequence.prompt_length);
  const int64_t num_rows = end - scheduled.start;
  if (sequence.reads_prompt_logits) sequence.prompt_logits_read = std::max(sequence.prompt_logits_read, end);
  sequence.facts.encoder_rows_run += num_rows;
  totals_.encoder_rows_run += num_rows;
  for (int64_t k = 0; k < config_.decoder.num_replay_layers(); ++k) {
    const int64_t rows =
        count_computed(scheduled.row_plan.get(), config_.decoder.num_encoder_layers + k, scheduled.start, num_rows);
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

PageStats Scheduler::page_stats(CacheGroup which) const {
  return {group(which).usable_pages(), pool(which).num_free(), pool(which).num_cached(), config_.page_size};
}

void Scheduler::check_integrity() const {
  REPRISE_ENSURE(sequences_.size() == running_.size() + waiting_.size(), sequences_.size(), " sequences, ",
                 running_.size(), " running, ", waiting_.size(), " waiting");
  REPRISE_ENSURE(free_slots_.size() + running_.size() == static_cast<size_t>(config_.max_num_seqs), free_slots_.size(),
                 " free slots beside ", running_.size(), " running sequences");
  std::vector<uint8_t> slot_taken(static_cast<size_t>(config_.max_num_seqs), 0);
  for (int32_t slot : free_slots_)
    REPRISE_ENSURE(!slot_taken[static_cast<size_t>(slot)]++, "slot ", slot, " is free twice");
  REPRISE_ENSURE(std::is_sorted(running_.begin(), running_.end(), RunsBefore()), "running sequences are out of order");

  for (const Sequence* sequence : waiting_) {
    REPRISE_ENSURE(sequence->state_slot < 0 && sequence->num_computed == 0, "waiting request ", sequence->id,
                   " has state");
    for (const BlockTable& table : sequence->tables) {
      REPRISE_ENSURE(table.num_entries() == 0, "waiting request ", sequence->id, " holds pages");
    }
  }
  for (CacheGroup which : kGroups) {
    std::vector<int32_t> owners(static_cast<size_t>(pool(which).num_pages()), 0);
    for (const Sequence* sequence : running_) {
      const BlockTable& table = sequence->table(which);
      for (int64_t entry = 0; entry < table.num_entries(); ++entry) {
        const int32_t page = table.page(entry);
        REPRISE_ENSURE((page != kPadPage) == (entry >= table.first_live()), name(which), " entry ", entry,
                       " of request ", sequence->id, " is page ", page, " but the first live entry is ",
                       table.first_live());
        if (page != kPadPage) ++owners[static_cast<size_t>(page)];
      }
    }
    for (int32_t page = 1; page < pool(which).num_pages(); ++page) {
      const int32_t count = owners[static_cast<size_t>(page)];
      REPRISE_ENSURE(count == pool(which).use_count(page), name(which), " page ", page, " has ", count,
                     " owners but counts ", pool(which).use_count(page));
      REPRISE_ENSURE(count <= 1 || pool(which).is_cached(page), name(which), " page ", page, " has ", count,
                     " owners but is not cached");
    }
    pool(which).check_integrity();
  }
  if (prefix_cache_) prefix_cache_->check_integrity();
  for (const Sequence* sequence : running_) {
    REPRISE_ENSURE(sequence->state_slot >= 0 && !slot_taken[static_cast<size_t>(sequence->state_slot)]++, "slot ",
                   sequence->state_slot, " of request ", sequence->id, " is taken twice");
    REPRISE_ENSURE(sequence->num_remaining() >= 1, "request ", sequence->id, " runs but has no row left");
    const BlockTable& window = sequence->table(CacheGroup::kWindow);
    REPRISE_ENSURE(window.num_entries() * config_.page_size >= sequence->num_computed, "request ", sequence->id,
                   " ran rows without window pages");
    REPRISE_ENSURE(
        window.num_pages() == 0 || window.first_live() * config_.page_size <=
                                       std::max(sequence->num_computed - config_.decoder.window, sequence->first_row),
        "request ", sequence->id, " gave back window rows that can still be read");
    REPRISE_ENSURE(
        !config_.has_compressed_group ||
            sequence->table(CacheGroup::kCompressed).num_entries() * config_.page_size >= sequence->num_computed,
        "request ", sequence->id, " ran rows without compressed pages");
  }
}

}  // namespace reprise
