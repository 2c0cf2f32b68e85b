#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "inputs/engram_hash.h"
#include "reprise/config.h"
#include "reprise/step_plan.h"

namespace reprise {

// Hashes a step's tokens, with the lookback before each chunk's start, to rows of the Engram tables.
class EngramRows {
 public:
  // vocabulary: token id -> compressed id [vocab_size]. Throws std::invalid_argument when it does not fit the config.
  EngramRows(const ModelConfig& config, std::vector<int32_t> vocabulary);

  // Fills, per Engram layer, [rows, tables] int64; memory of `rows` that nobody else refers to serves again.
  void fill(const StepPlan& plan, std::vector<at::Tensor>& rows);

 private:
  std::vector<int32_t> vocabulary_;
  std::vector<EngramHash> hashes_;
  std::vector<int32_t> compressed_;  // ids of the sequence under way
};

}  // namespace reprise
