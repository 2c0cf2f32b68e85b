#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "reprise/step_plan.h"

namespace reprise {

// Python's ScheduledSequence: the C++ one with tokens of its own, which otherwise are borrowed from the scheduler.
class PlannedSequence {
 public:
  PlannedSequence(ScheduledSequence sequence, std::vector<int32_t> tokens)
      : sequence_(std::move(sequence)), tokens_(std::move(tokens)) {}

  const std::vector<int32_t>& tokens() const { return tokens_; }
  // Valid as long as this object.
  ScheduledSequence sequence() const {
    ScheduledSequence sequence = sequence_;
    sequence.tokens = tokens_;
    return sequence;
  }

 private:
  ScheduledSequence sequence_;
  std::vector<int32_t> tokens_;
};

// Python's StepPlan.
struct PlannedStep {
  std::vector<PlannedSequence> sequences;
  std::vector<BlockTableUpdate> block_table_updates;

  // Valid as long as this object.
  StepPlan plan() const {
    StepPlan plan;
    for (const PlannedSequence& planned : sequences) {
      plan.sequences.push_back(planned.sequence());
      plan.num_rows += plan.sequences.back().num_rows;
    }
    plan.block_table_updates = block_table_updates;
    return plan;
  }
};

}  // namespace reprise
