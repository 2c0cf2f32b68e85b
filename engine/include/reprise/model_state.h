#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "reprise/model_facts.h"
#include "reprise/step_inputs.h"
#include "reprise/step_plan.h"

namespace reprise {

// Turns each step's plan into tensors: lays it out in integers, then uploads those: the batch's forward context and,
// where layers keep fewer rows, the kept rows as sub-batches with attention metadata and a context of their own. Holds
// the block tables.
class ModelState {
 public:
  ~ModelState();
  ModelState(ModelState&&) noexcept;
  ModelState& operator=(ModelState&&) noexcept;

  // Applies the plan's block table updates and builds what the forward takes. `hidden_rows`, one flag per sequence or
  // empty: final hidden states of all of the sequence's rows are wanted, not only of those whose logits are read.
  // Throws std::invalid_argument, and applies nothing, for a plan that does not fit what the state was built for.
  StepInputs prepare(const StepPlan& plan, const std::vector<bool>& hidden_rows = {});
  // The same into the inputs of an earlier step, or empty ones. Memory that only they refer to serves again, so that a
  // decode step like those before it allocates nothing.
  void prepare(const StepPlan& plan, const std::vector<bool>& hidden_rows, StepInputs& inputs);

  const ModelFacts& facts() const;
  int64_t page_size() const;

 private:
  friend class ModelStateBuilder;
  class Impl;
  explicit ModelState(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Builds a ModelState for a model. Each setter returns the builder.
class ModelStateBuilder {
 public:
  explicit ModelStateBuilder(ModelFacts facts) : facts_(std::move(facts)) {}

  ModelStateBuilder& max_num_seqs(int64_t value);   // state slots, default 64
  ModelStateBuilder& max_model_len(int64_t value);  // tokens per request, default max_position_embeddings
  ModelStateBuilder& page_size(int64_t value);      // tokens per cache page, default 64
  // Token id -> compressed id [vocab_size]; needed when the model has Engram layers.
  ModelStateBuilder& engram_vocabulary(std::vector<int32_t> map);

  // Throws std::invalid_argument for settings that do not fit the model.
  ModelState build() const;

 private:
  ModelFacts facts_;
  int64_t max_num_seqs_ = 64;
  int64_t max_model_len_ = 0;
  int64_t page_size_ = 64;
  std::vector<int32_t> engram_vocabulary_;
};

}  // namespace reprise
