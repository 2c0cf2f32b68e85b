#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/config_reader.h"

namespace reprise {

// The parts of a checkpoint's JSON files, each with a list of the fields that are known to stand in it.
enum class ConfigSection {
  kModel,         // config.json around the text backbone
  kText,          // text_config, or config.json where the text backbone stands by itself
  kRope,          // rope_parameters, or one of its groups
  kQuantization,  // quantization_config
  kGeneration,    // generation_config.json
};

// Holds every field of `object` against the section's list. One that would change the model's meaning, and that the
// engine knows in one position only, is a problem at any other value; one that is not in the list is added to
// `unknown`. Both are named with `path` before them. Null counts as absent, and so do names that begin with an
// underscore.
void check_fields(const nlohmann::json& object, ConfigSection section, const std::string& path,
                  ConfigProblems& problems, std::vector<std::string>& unknown);

}  // namespace reprise
