#pragma once

#include "models/config_reader.h"
#include "reprise/config.h"

namespace reprise {

// Notes every field of `config` that does not agree with another one. Fields that `problems` names already are 0 or
// empty in `config`; nothing is said of them again, nor of others that lean on them.
void check_consistency(const ModelConfig& config, ConfigProblems& problems);

}  // namespace reprise
