#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reprise/request.h"
#include "reprise/step_inputs.h"
#include "reprise/step_plan.h"
#include "runtime/request_state.h"
#include "runtime/sampler.h"

namespace reprise {

// What a step's logits bring one sequence.
struct SequenceStep {
  std::optional<SampledToken> sampled;
  std::vector<TokenLogprobs> prompt_logprobs;  // of the prompt tokens whose logits came with this step
  std::vector<float> hidden_states;            // [rows not given before, H]
  std::string error;                           // the logits were no distribution
};

// Samples and reads logprobs for every sequence of a step, in the plan's order. `requests` beside plan.sequences; a
// null one was aborted meanwhile and brings nothing. `hidden_rows` as given to ModelState::prepare.
std::vector<SequenceStep> read_outputs(const StepPlan& plan, std::span<const RequestState* const> requests,
                                       const std::vector<bool>& hidden_rows, const StepOutputs& outputs);

}  // namespace reprise
