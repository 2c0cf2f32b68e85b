#include "runtime/replay_mode.h"

#include "reprise/error.h"

namespace reprise {

ReplayDecision decide_replay(ReplayMode wanted, const ModelConfig& config) {
  if (wanted == ReplayMode::kOff) return {};
  const int64_t encoder = config.num_encoder_layers();
  if (encoder == 0) return {ReplayMode::kOff, "the model declares no KV sources"};
  if (encoder == config.num_hidden_layers) return {ReplayMode::kOff, "no layer follows the last KV source"};
  for (const int64_t layer : config.engram_layer_ids) {
    if (layer >= encoder)
      return {ReplayMode::kOff, concat("layer ", layer, " follows the last KV source and carries an Engram")};
  }
  if (wanted == ReplayMode::kLastRow)
    return {ReplayMode::kOff, "the replay layers own window KV, which later rows read"};
  return {wanted, {}};
}

}  // namespace reprise
