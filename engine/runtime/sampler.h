#pragma once

#include <cstdint>
#include <span>

#include "reprise/request.h"

namespace reprise {

struct SampledToken {
  int32_t token = 0;
  TokenLogprobs logprobs;  // empty unless asked for
};

// Throws std::invalid_argument for the first field that is NaN, out of range or names a token that does not exist.
void check_sampling_params(const SamplingParams& params, int64_t vocab_size);

// The draw that chooses generated token `position` of a request: uniform in [0, 1), a pure function of its arguments
// (Philox 4x32-10, key = seed, counter = position), so batching, chunking and preemption cannot change it.
double uniform_draw(uint64_t seed, uint64_t position);

// Chooses a token from one row of logits [V]. Temperature 0 is the argmax, the lowest id among equals. Otherwise
// temperature, min_p, top_k and top_p narrow the distribution in this order, each on what the ones before it left, and
// uniform_draw picks. Throws std::runtime_error for a row that is no distribution (NaN, +inf, or nothing above -inf).
SampledToken sample_row(std::span<const float> logits, const SamplingParams& params, uint64_t seed, uint64_t position);

// The log-softmax (in double) of the raw logits [V]: `token` first, then the `count` most likely ones in order, without
// `token` where it is among them; count -1 = the whole vocabulary. Equal logits rank by id, lowest first.
TokenLogprobs logprobs_of(std::span<const float> logits, int32_t token, int64_t count);

}  // namespace reprise
