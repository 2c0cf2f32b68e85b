#pragma once

#include <cstdint>

#include "reprise/config.h"
#include "reprise/request.h"

namespace reprise {

// Throws std::invalid_argument naming the first setting that is out of range or does not fit the model.
void check_engine_config(const EngineConfig& config, const ModelConfig& model);

// Throws std::invalid_argument for a request that no engine of this model and max_model_len can serve.
void check_request(const Request& request, const ModelConfig& model, int64_t max_model_len);

}  // namespace reprise
