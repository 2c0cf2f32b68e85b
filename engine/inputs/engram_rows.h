#pragma once

#include <cstdint>
#include <vector>

#include "inputs/engram_hash.h"
#include "reprise/model_facts.h"
#include "reprise/step_plan.h"

namespace reprise {

// Hashes a step's tokens, with the lookback before each chunk's start, to rows of the Engram tables.
class EngramRows {
 public:
  // vocabulary: token id -> compressed id [vocab_size]. Throws std::invalid_argument when it does not fit the model.
  EngramRows(const ModelFacts& model, std::vector<int32_t> vocabulary);

  size_t num_layers() const { return hashes_.size(); }
  int64_t num_tables(size_t layer) const { return hashes_[layer].num_tables(); }
  // Fills, per Engram layer, [rows, tables].
  void fill(const StepPlan& plan, std::vector<std::vector<int64_t>>& rows);

 private:
  std::vector<int32_t> vocabulary_;
  std::vector<EngramHash> hashes_;
  std::vector<int32_t> compressed_;  // ids of the sequence under way
};

}  // namespace reprise
