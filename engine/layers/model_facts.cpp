#include "reprise/model_facts.h"

#include <algorithm>
#include <set>

#include "layers/cache_layout.h"
#include "reprise/error.h"

namespace reprise {
namespace {

// The latest id at or before `layer`, -1 when there is none.
int64_t latest_at_or_before(const std::vector<int64_t>& ids, int64_t layer) {
  const auto after = std::upper_bound(ids.begin(), ids.end(), layer);
  return after == ids.begin() ? -1 : *(after - 1);
}

bool reads_compressed_kv(const ModelConfig& config, int64_t layer) {
  return layer >= 0 && layer < static_cast<int64_t>(config.compress_ratios.size()) && config.compress_ratios[layer] > 0;
}

}  // namespace

int64_t ModelConfig::kv_source_of(int64_t layer) const {
  return reads_compressed_kv(*this, layer) ? latest_at_or_before(kv_source_layer_ids, layer) : -1;
}

int64_t ModelConfig::index_source_of(int64_t layer) const {
  return reads_compressed_kv(*this, layer) ? latest_at_or_before(index_source_layer_ids, layer) : -1;
}

ModelFacts make_model_facts(const ModelConfig& config) {
  ModelFacts facts{
      .model_type = config.model_type,
      .dtype = config.dtype,
      .vocab_size = config.vocab_size,
      .hidden_size = config.hidden_size,
      .max_position_embeddings = config.max_position_embeddings,
      .eos_token_ids = config.eos_token_ids,
      .notices = config.notices,
      .layers = std::vector(static_cast<size_t>(config.num_hidden_layers), LayerFacts{.window = config.sliding_window}),
      .num_encoder_layers = config.num_encoder_layers(),
      .state_name = "partial"};
  if (facts.num_encoder_layers == 0) {
    facts.replay_obstacle = "the model declares no KV sources";
  } else if (facts.num_replay_layers() == 0) {
    facts.replay_obstacle = "no layer follows the last KV source";
  }
  for (const int64_t layer : config.engram_layer_ids) {
    if (layer >= facts.num_encoder_layers && facts.replay_obstacle.empty())
      facts.replay_obstacle = concat("layer ", layer, " follows the last KV source and carries an Engram");
  }

  facts.groups = {{.name = "window", .window = config.sliding_window}};
  facts.cells = {{.group = kWindowGroup}};
  facts.ropes = {{.dim = config.qk_rope_head_dim, .theta = config.rope_theta}};
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    facts.cache_tensors.push_back({.kind = kWindowKv, .layer = layer, .group = kWindowGroup, .width = config.head_dim});
  }
  if (!config.engram_layer_ids.empty()) {
    facts.engram = {.layer_ids = config.engram_layer_ids,
                    .max_ngram_size = config.engram_max_ngram_size,
                    .num_heads = config.engram_n_heads,
                    .vocab_size = config.engram_vocab_size,
                    .compressed_vocab_size = config.engram_compressed_vocab_size,
                    .pad_token_id = config.engram_pad_token_id};
  }
  if (config.kv_source_layer_ids.empty()) return facts;

  facts.groups.push_back({.name = "compressed", .cacheable = true});
  facts.ropes.push_back({.dim = config.qk_rope_head_dim,
                         .theta = config.compress_rope_theta,
                         .yarn_factor = config.yarn_factor,
                         .yarn_original_max_position = config.yarn_original_max_position,
                         .yarn_beta_fast = config.yarn_beta_fast,
                         .yarn_beta_slow = config.yarn_beta_slow});
  std::set<int64_t> ratios;
  for (const int64_t layer : config.kv_source_layer_ids) {
    const int64_t ratio = config.compress_ratios[static_cast<size_t>(layer)];
    ratios.insert(ratio);
    for (const auto& [kind, width] : {std::pair(kCompressedKv, config.head_dim), {kIndexKeys, config.index_head_dim}}) {
      facts.cache_tensors.push_back(
          {.kind = kind, .layer = layer, .group = kCompressedGroup, .ratio = ratio, .width = width});
    }
    if (ratio > 1)
      facts.state_tensors.push_back({.kind = kPartialGroups, .layer = layer, .sizes = {ratio, 2, config.head_dim}});
  }
  for (const int64_t ratio : ratios)
    facts.cells.push_back({.group = kCompressedGroup, .ratio = ratio, .rope = kCompressedRope});
  return facts;
}

}  // namespace reprise
