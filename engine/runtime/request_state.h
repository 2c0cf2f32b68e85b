#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reprise/request.h"

namespace reprise {

using Clock = std::chrono::steady_clock;

// What the engine keeps of an unfinished request beside the scheduler's sequence.
struct RequestState {
  Request request;  // its prompt has gone to the scheduler
  uint64_t seed = 0;
  int64_t num_generated = 0;
  Clock::time_point submitted;
  std::optional<Clock::time_point> first_token;
  int64_t prompt_length = 0;
  std::optional<Clock::time_point> deadline;
  ReplayMode replay = ReplayMode::kOff;
  std::string replay_reason;
  std::vector<TokenLogprobs> prompt_logprobs;  // so far
  int64_t hidden_rows_read = 0;                // positions below it were given; a preempted request runs them again
};

}  // namespace reprise
