#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "reprise/model_facts.h"
#include "reprise/step_inputs.h"
#include "scheduler/step_layout.h"

namespace reprise {

// The one place where a step's integers become tensors.
class Uploader {
 public:
  // `block_tables`: per cache group [max_num_seqs, entries] int32; every context refers to them.
  Uploader(const ModelFacts& model, std::vector<at::Tensor> block_tables);

  // Fills `inputs` from a layout and, per Engram layer, its rows [rows, tables]. What earlier inputs hold, and nobody
  // else refers to, serves again: a step like the one before it allocates nothing.
  void upload(const StepLayout& layout, const std::vector<std::vector<int64_t>>& engram_rows, StepInputs& inputs) const;

 private:
  void upload_set(const StepLayout& layout, size_t set, StepInputs& inputs) const;
  void fill_ropes(AttentionMetadata& attention) const;

  std::vector<at::Tensor> block_tables_;
  std::vector<CacheGroupFacts> groups_;
  std::vector<CellFacts> cells_;
  std::vector<std::vector<float>> frequencies_;  // per rotary embedding
};

}  // namespace reprise
