#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/config_reader.h"
#include "reprise/config.h"

namespace reprise {

// Reads the rotary embedding's parameters of a text backbone, which stand in any of three forms:
//   rope_parameters {"main": {..}, "compress": {..}}   one group for layers of ratio 0, one for the others
//   rope_parameters {"rope_theta", "rope_type", ..}    theta of layers of ratio 0, scaling of the others
//   rope_scaling {..}                                  the older name of either; there rope_theta stands beside it
// A value that stands in several places must be the same in all. Sets rope_theta, compress_rope_theta and yarn_* of
// `config`; fields that are not known are added to `unknown`.
void read_rope(const nlohmann::json& text_object, ModelConfig& config, ConfigProblems& problems,
               std::vector<std::string>& unknown);

}  // namespace reprise
