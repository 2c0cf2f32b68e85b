#include "runtime/replay_mode.h"

namespace reprise {

ReplayDecision decide_replay(ReplayMode wanted, const ModelFacts& model) {
  if (wanted == ReplayMode::kOff) return {};
  if (!model.replay_obstacle.empty()) return {ReplayMode::kOff, model.replay_obstacle};
  if (wanted == ReplayMode::kLastRow && model.replay_layers_own_kv())
    return {ReplayMode::kOff, "the replay layers own window KV, which later rows read"};
  return {wanted, {}};
}

}  // namespace reprise
