#include <algorithm>
#include <string>

#include "reprise/error.h"
#include "scheduler/scheduler.h"

namespace reprise {

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
  for (size_t group = 0; group < groups_.size(); ++group) {
    const PagePool& pool = pools_[group];
    const std::string& name = config_.model.groups[group].name;
    std::vector<int32_t> owners(static_cast<size_t>(pool.num_pages()), 0);
    for (const Sequence* sequence : running_) {
      const BlockTable& table = sequence->tables[group];
      for (int64_t entry = 0; entry < table.num_entries(); ++entry) {
        const int32_t page = table.page(entry);
        REPRISE_ENSURE((page != kPadPage) == (entry >= table.first_live()), name, " entry ", entry, " of request ",
                       sequence->id, " is page ", page, " but the first live entry is ", table.first_live());
        if (page != kPadPage) ++owners[static_cast<size_t>(page)];
      }
    }
    for (int32_t page = 1; page < pool.num_pages(); ++page) {
      const int32_t count = owners[static_cast<size_t>(page)];
      REPRISE_ENSURE(count == pool.use_count(page), name, " page ", page, " has ", count, " owners but counts ",
                     pool.use_count(page));
      REPRISE_ENSURE(count <= 1 || pool.is_cached(page), name, " page ", page, " has ", count,
                     " owners but is not cached");
    }
    pool.check_integrity();
  }
  if (prefix_cache_) prefix_cache_->check_integrity();
  for (const Sequence* sequence : running_) {
    REPRISE_ENSURE(sequence->state_slot >= 0 && !slot_taken[static_cast<size_t>(sequence->state_slot)]++, "slot ",
                   sequence->state_slot, " of request ", sequence->id, " is taken twice");
    REPRISE_ENSURE(sequence->num_remaining() >= 1, "request ", sequence->id, " runs but has no row left");
    for (size_t group = 0; group < groups_.size(); ++group) {
      const BlockTable& table = sequence->tables[group];
      REPRISE_ENSURE(table.num_entries() * config_.page_size >= sequence->num_computed, "request ", sequence->id,
                     " ran rows without ", config_.model.groups[group].name, " pages");
      const int64_t window = groups_[group].window;
      REPRISE_ENSURE(
          window == 0 || table.num_pages() == 0 ||
              table.first_live() * config_.page_size <= std::max(sequence->num_computed - window, sequence->first_row),
          "request ", sequence->id, " gave back ", config_.model.groups[group].name, " rows that can still be read");
    }
  }
}

}  // namespace reprise
