#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reprise/config.h"

namespace reprise {

using RequestId = int64_t;

struct SamplingParams {
  int64_t max_tokens = 16;       // 0 = run the prompt only
  double temperature = 1.0;      // 0 = greedy
  double top_p = 1.0;            // (0, 1]
  int64_t top_k = 0;             // 0 or -1 = off
  double min_p = 0.0;            // [0, 1]
  std::optional<uint64_t> seed;  // none = drawn by the engine
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  std::optional<int64_t> logprobs;  // entries per generated token besides the chosen one; -1 = the whole vocabulary
  std::optional<int64_t> prompt_logprobs;  // the same per prompt token; such a prompt is never trimmed
  bool return_hidden_states = false;       // hidden states after the last layer for every row; never trimmed
};

struct Request {
  std::vector<int32_t> prompt_token_ids;
  SamplingParams sampling;
  int64_t priority = 0;              // lower runs first
  std::optional<ReplayMode> replay;  // overrides the engine's
  double timeout_s = 0;              // seconds from submit until the request ends as timed out; 0 = none
};

enum class FinishReason { kNone, kStop, kLength, kAbort, kTimeout };

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0;  // natural log of the model's probability, before temperature
  int32_t rank = 0;   // 1 = the most likely
};

// One generated or prompt token's entries: the token itself first, then the most likely ones in order.
using TokenLogprobs = std::vector<TokenLogprob>;

struct RequestMetrics {
  double time_to_first_token = 0;             // seconds from submit
  double total_time = 0;                      // seconds from submit
  int64_t prompt_rows = 0;                    // prompt tokens
  int64_t cached_rows = 0;                    // prompt tokens taken from the prefix cache
  int64_t encoder_rows_run = 0;               // prompt rows that ran the encoder layers, recomputed ones included
  int64_t replay_rows_run = 0;                // prompt output rows computed, summed over the replay layers
  std::vector<int64_t> replay_rows_by_layer;  // the same per replay layer
  // How window KV below the prefix that it found was rebuilt (kBounded: an approximation); kAuto where it found none.
  PrefixRebuild prefix_rebuild = PrefixRebuild::kAuto;
  int64_t preemptions = 0;
  ReplayMode replay_mode = ReplayMode::kOff;  // the mode that this request ran under
  std::string replay_reason;                  // why it is not the mode asked for; empty when it is
};

// What a step brought one request.
struct RequestOutput {
  RequestId id = 0;
  std::vector<int32_t> new_token_ids;
  std::vector<TokenLogprobs> logprobs;         // one per new token, when asked for
  std::vector<TokenLogprobs> prompt_logprobs;  // given once, when the prompt is done; [0] is empty
  std::vector<float> hidden_states;            // this step's rows [rows, hidden_size], when asked for
  bool finished = false;
  FinishReason finish_reason = FinishReason::kNone;
  int32_t stop_token_id = -1;  // the stop token that ended it
  std::string error;           // why the engine gave the request up; empty otherwise
  RequestMetrics metrics;
};

}  // namespace reprise
