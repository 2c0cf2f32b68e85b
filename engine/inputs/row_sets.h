#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "reprise/config.h"
#include "reprise/step_inputs.h"
#include "reprise/step_plan.h"

namespace reprise {

// Makes a step's forward contexts: one for the batch, and one for each set of rows that layers narrow it to.
class RowSets {
 public:
  RowSets(const ModelConfig& config, int64_t page_size);

  // Fills inputs.forward_context and inputs.layers. What earlier inputs hold, and nobody else refers to, serves again.
  void build(const StepPlan& plan, const at::Tensor& window_table, const at::Tensor& compressed_table,
             StepInputs& inputs);
  // Fills inputs.output_rows and inputs.logits_rows; after build().
  void choose_outputs(const StepPlan& plan, const std::vector<bool>& hidden_rows, StepInputs& inputs);

 private:
  // The rows that take part at some point of the forward: of each sequence those at positions >= first.
  struct Cut {
    std::vector<int64_t> firsts;
    std::vector<int64_t> floors;
    friend bool operator==(const Cut&, const Cut&) = default;
  };

  void fill_batch(const StepPlan& plan, const at::Tensor& window_table, const at::Tensor& compressed_table,
                  ForwardContext& context) const;
  void fill_rope(const at::Tensor& positions, int64_t offset, const std::vector<float>& frequencies,
                 RopeRows& rope) const;
  void fill_published(const StepPlan& plan, const at::Tensor& compressed_table, AttentionMetadata& attention) const;
  std::shared_ptr<ForwardContext> cut_context(const StepPlan& plan, const Cut& cut, const ForwardContext& batch,
                                              bool publishes) const;

  ModelConfig config_;
  int64_t page_size_;
  std::vector<int64_t> ratios_;  // the KV sources' distinct compress ratios
  std::vector<float> window_frequencies_;
  std::vector<float> compressed_frequencies_;
  Cut last_;                      // the rows that the last layer computes in the step being built
  std::vector<int64_t> outputs_;  // of the step being built
  std::vector<int64_t> logits_;
};

}  // namespace reprise
