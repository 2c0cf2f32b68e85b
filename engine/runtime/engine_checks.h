#pragma once

#include <cstdint>

#include "reprise/model_facts.h"
#include "reprise/request.h"

namespace reprise {

// The config that an engine runs with: every running request has a row in max_num_batched_tokens. Throws
// std::invalid_argument naming the first setting that is out of range or does not fit the model.
[[nodiscard]] EngineConfig check_engine_config(EngineConfig config, const ModelFacts& model);

// Throws std::invalid_argument for a request that no engine of this model and max_model_len can serve.
void check_request(const Request& request, const ModelFacts& model, int64_t max_model_len);

}  // namespace reprise
