#pragma once

#include <cstdint>

#include "reprise/model_facts.h"

namespace reprise::testing {

constexpr int32_t kWindow = 0;      // cache groups of these decoders
constexpr int32_t kCompressed = 1;  // there with encoder layers

// A decoder of the DeepSeek-V4.1 kind: window KV in every layer (or none in the replay layers), and a cacheable group
// of compressed KV that encoder layers publish.
inline ModelFacts make_facts(int64_t num_layers, int64_t num_encoder_layers, int64_t window,
                             bool replay_layers_own_kv = true, int64_t ratio = 2) {
  ModelFacts facts;
  facts.layers.assign(static_cast<size_t>(num_layers), {.window = window});
  facts.num_encoder_layers = num_encoder_layers;
  for (auto layer = num_encoder_layers; layer < num_layers && !replay_layers_own_kv; ++layer)
    facts.layers[static_cast<size_t>(layer)] = {.window = 0, .owns_kv = false};
  facts.groups = {{.name = "window", .window = window}};
  facts.cells = {{.group = kWindow}};
  if (num_encoder_layers == 0) return facts;
  facts.groups.push_back({.name = "compressed", .cacheable = true});
  facts.cells.push_back({.group = kCompressed, .ratio = ratio});
  return facts;
}

}  // namespace reprise::testing
