#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "reprise/config.h"

namespace reprise {

// What a planner, caches and step inputs may know of a decoder, whatever its family.

// A cache group: KV whose pages come and go together, behind one block table per request.
struct CacheGroupFacts {
  std::string name;        // in statistics and messages
  int64_t window = 0;      // rows that stay readable behind the next one; 0 = all of a request's rows
  bool cacheable = false;  // its pages may serve later requests with the same prefix; at most one group's may
};

// Cells behind the pages of a group, for one layer: [pages * page_size / ratio, width].
struct CacheTensorFacts {
  int32_t kind = 0;  // the family's own number, unique within a layer
  int64_t layer = 0;
  int32_t group = 0;
  int64_t ratio = 1;  // tokens per cell; a page holds whole cells
  int64_t width = 0;  // values per cell, in the model's dtype
};

// What a layer keeps of a running request beside its pages: float32 [max_num_seqs, sizes...].
struct StateTensorFacts {
  int32_t kind = 0;  // the family's own number, unique within a layer
  int64_t layer = 0;
  std::vector<int64_t> sizes;
};

// A rotary embedding: frequencies theta^(-2j / dim) of adjacent channel pairs, interpolated as YaRN does, without its
// magnitude factor.
struct RopeFacts {
  int64_t dim = 0;
  double theta = 0;
  double yarn_factor = 1;  // 1 = no scaling
  double yarn_original_max_position = 0;
  double yarn_beta_fast = 32;
  double yarn_beta_slow = 1;
};

// Where rows write KV: the cells of a group at one ratio. A row writes where it completes a group of `ratio` tokens.
struct CellFacts {
  int32_t group = 0;
  int64_t ratio = 1;
  int32_t rope = -1;  // the embedding, at the position of the first of those tokens, that is made for them; -1 = none
};

struct LayerFacts {
  int64_t window = 0;            // attention over KV of its own reads keys p-W+1..p; 0 = every earlier row
  bool owns_kv = true;           // false: reads only what other layers have cached
  bool kv_is_cacheable = false;  // what it owns lies in the cacheable group: a prefix-cache hit brings it
};

// Hashed n-gram memory: which rows of its tables a token looks up. Layers without one have none of this.
struct EngramFacts {
  std::vector<int64_t> layer_ids;  // ascending; empty = none
  int64_t max_ngram_size = 0;
  int64_t num_heads = 0;
  int64_t vocab_size = 0;  // least size of a table
  int64_t compressed_vocab_size = 0;
  int64_t pad_token_id = 0;
};

struct ModelFacts {
  std::string model_type;
  Dtype dtype = Dtype::kBFloat16;  // the checkpoint's own
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t max_position_embeddings = 0;
  std::vector<int64_t> eos_token_ids;
  std::vector<std::string> notices;  // what the checkpoint's files say that is passed over, for the front end to show
  std::vector<LayerFacts> layers;
  int64_t num_encoder_layers = 0;  // layers up to and including the last that caches what later layers read; 0 = none
  std::string replay_obstacle;     // why the layers after them must run on every row; empty where they need not
  std::vector<CacheGroupFacts> groups;
  std::vector<CacheTensorFacts> cache_tensors;
  std::vector<StateTensorFacts> state_tensors;
  std::string state_name = "state";  // in statistics
  std::vector<CellFacts> cells;      // one per group and ratio of cache_tensors
  std::vector<RopeFacts> ropes;
  EngramFacts engram;

  int64_t num_layers() const { return static_cast<int64_t>(layers.size()); }
  int64_t num_replay_layers() const { return num_layers() - num_encoder_layers; }
  // The widest window of any layer.
  int64_t window() const {
    int64_t window = 0;
    for (const LayerFacts& layer : layers) window = std::max(window, layer.window);
    return window;
  }
  bool replay_layers_own_kv() const {
    return std::any_of(layers.begin() + num_encoder_layers, layers.end(), [](const auto& l) { return l.owns_kv; });
  }
  // A page holds whole cells of every ratio.
  int64_t max_ratio() const {
    int64_t ratio = 1;
    for (const CellFacts& c : cells) ratio = std::max(ratio, c.ratio);
    return ratio;
  }
};

// The facts of a DeepSeek-V4.1 decoder: a window group that every layer owns KV in, and, where layers publish, a group
// of compressed KV and index keys that is cacheable.
ModelFacts make_model_facts(const ModelConfig& config);

}  // namespace reprise
