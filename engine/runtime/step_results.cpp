#include "runtime/step_results.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <exception>

#include "backends/cast.h"
#include "reprise/error.h"

namespace reprise {

namespace {

// Where a sequence's rows begin among the step's logits and hidden states.
struct Place {
  int64_t logits = 0;
  int64_t hidden = 0;
};

SequenceStep read_sequence(const ScheduledSequence& sequence, const RequestState& request, const Place& place,
                           const StepOutputs& outputs) {
  SequenceStep step;
  const auto& sampling = request.request.sampling;
  const int64_t num_logits = sequence.num_rows - sequence.first_logits_row;
  const auto row = [&](int64_t i) {
    const int64_t vocab = outputs.logits.size(1);
    return std::span<const float>(outputs.logits.const_data_ptr<float>() + (place.logits + i) * vocab,
                                  static_cast<size_t>(vocab));
  };
  try {
    if (sampling.prompt_logprobs) {
      for (int64_t i = 0; i < num_logits; ++i) {
        const int64_t next = sequence.start + sequence.first_logits_row + i + 1;
        if (next >= sequence.prompt_length) break;
        step.prompt_logprobs.push_back(
            logprobs_of(row(i), sequence.tokens[static_cast<size_t>(next)], *sampling.prompt_logprobs));
      }
    }
    if (sequence.samples) {
      step.sampled =
          sample_row(row(num_logits - 1), sampling, request.seed, static_cast<uint64_t>(request.num_generated));
    }
  } catch (const std::runtime_error& error) {
    step.error = error.what();
  }
  if (sampling.return_hidden_states) {
    const int64_t given = std::clamp<int64_t>(request.hidden_rows_read - sequence.start, 0, sequence.num_rows);
    const at::Tensor rows = outputs.hidden_states.narrow(0, place.hidden + given, sequence.num_rows - given);
    step.hidden_states.resize(static_cast<size_t>(rows.numel()));
    read_floats(rows, step.hidden_states);
  }
  return step;
}

}  // namespace

std::vector<SequenceStep> read_outputs(const StepPlan& plan, std::span<const RequestState* const> requests,
                                       const std::vector<bool>& hidden_rows, const StepOutputs& outputs) {
  std::vector<Place> places;
  Place next;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const auto& sequence = plan.sequences[i];
    places.push_back(next);
    const int64_t num_logits = sequence.num_rows - sequence.first_logits_row;
    next.logits += num_logits;
    next.hidden += hidden_rows[i] ? sequence.num_rows : num_logits;
  }
  std::vector<SequenceStep> steps(plan.sequences.size());
  at::parallel_for(0, static_cast<int64_t>(steps.size()), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      if (requests[i] != nullptr) steps[i] = read_sequence(plan.sequences[i], *requests[i], places[i], outputs);
    }
  });
  return steps;
}

}  // namespace reprise
