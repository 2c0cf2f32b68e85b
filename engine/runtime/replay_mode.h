#pragma once

#include <string>

#include "reprise/config.h"
#include "reprise/model_facts.h"

namespace reprise {

// A replay mode and, where it is not the one asked for, why.
struct ReplayDecision {
  ReplayMode mode = ReplayMode::kOff;
  std::string reason;
};

// What a model can do of the mode asked for.
ReplayDecision decide_replay(ReplayMode wanted, const ModelFacts& model);

}  // namespace reprise
