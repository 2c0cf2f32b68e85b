#include "models/model_config_checks.h"

#include <algorithm>

#include "backends/stream_mix.h"
#include "inputs/engram_hash.h"

namespace reprise {
namespace {

constexpr int64_t kMaxRatio = 65536;      // tokens of a group, and of the largest page
constexpr int64_t kMaxSelection = 65536;  // entries of a row; every row of a step has a place for them
constexpr int64_t kMaxEngramLayers = 64;
constexpr int64_t kMaxEngramTables = 1024;  // the prime of each is searched when the model loads

bool contains(const std::vector<int64_t>& ids, int64_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

void check_at_most(const char* field, int64_t value, int64_t most, ConfigProblems& problems) {
  if (value > most) problems.add(field, "wanted at most ", most, " but got ", value);
}

// Layer ids must rise strictly within [0, layers). Returns whether they do.
bool check_layer_ids(const char* field, const std::vector<int64_t>& ids, int64_t layers, ConfigProblems& problems) {
  bool good = true;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= layers) {
      problems.add(field, "wanted layers in [0, ", layers, ") but got ", ids[i]);
      good = false;
    }
    if (i > 0 && ids[i] <= ids[i - 1]) {
      problems.add(field, "wanted ascending layers but got ", ids[i], " after ", ids[i - 1]);
      good = false;
    }
  }
  return good;
}

void check_multiple(const char* field, int64_t value, int64_t unit, const char* why, ConfigProblems& problems) {
  if (value % unit != 0) problems.add(field, "wanted a multiple of ", unit, " (", why, ") but got ", value);
}

// Who publishes, who selects, who reads.
void check_layer_roles(const ModelConfig& config, ConfigProblems& problems) {
  for (const char* field : {"num_hidden_layers", "compress_ratios", "kv_source_layer_ids", "index_source_layer_ids"}) {
    if (problems.has(field)) return;
  }
  const int64_t layers = config.num_hidden_layers;
  const auto& ratios = config.compress_ratios;
  for (const int64_t ratio : ratios) {
    if (ratio < 0) problems.add("compress_ratios", "wanted ratios of at least 0 but got ", ratio);
    check_at_most("compress_ratios", ratio, kMaxRatio, problems);
  }
  const bool good_kv = check_layer_ids("kv_source_layer_ids", config.kv_source_layer_ids, layers, problems);
  const bool good_index = check_layer_ids("index_source_layer_ids", config.index_source_layer_ids, layers, problems);
  if (static_cast<int64_t>(ratios.size()) < layers) {
    problems.add("compress_ratios", "wanted one ratio for each of the ", layers, " layers (num_hidden_layers) but got ",
                 ratios.size());
    return;
  }
  if (!good_kv || !good_index) return;

  for (const int64_t layer : config.kv_source_layer_ids) {
    if (ratios[layer] <= 0) {
      problems.add("kv_source_layer_ids", "wanted layers with a compress ratio above 0 but got layer ", layer,
                   " with ratio ", ratios[layer]);
    }
    if (!contains(config.index_source_layer_ids, layer)) {
      problems.add("index_source_layer_ids", "wanted every KV source among them but layer ", layer, " is not");
    }
  }
  for (const int64_t layer : config.index_source_layer_ids) {
    if (ratios[layer] <= 0) {
      problems.add("index_source_layer_ids", "wanted layers with a compress ratio above 0 but got layer ", layer,
                   " with ratio ", ratios[layer]);
    }
  }
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (ratios[layer] <= 0) continue;
    const auto after = std::upper_bound(config.kv_source_layer_ids.begin(), config.kv_source_layer_ids.end(), layer);
    if (after == config.kv_source_layer_ids.begin()) {
      problems.add("compress_ratios", "layer ", layer, " has ratio ", ratios[layer],
                   " but no KV source stands at or before it");
    } else if (const int64_t source = *(after - 1); ratios[source] != ratios[layer]) {
      problems.add("compress_ratios", "layer ", layer, " has ratio ", ratios[layer],
                   " but reads the KV source at layer ", source, " with ratio ", ratios[source]);
    }
  }
}

void check_attention(const ModelConfig& config, ConfigProblems& problems) {
  check_multiple("head_dim", config.head_dim, 32, "the fp8 cache format scales groups of 32 channels", problems);
  check_multiple("qk_rope_head_dim", config.qk_rope_head_dim, 2, "rotary embedding turns pairs", problems);
  if (config.head_dim > 0 && config.qk_rope_head_dim > config.head_dim) {
    problems.add("qk_rope_head_dim", "wanted at most head_dim = ", config.head_dim, " but got ",
                 config.qk_rope_head_dim);
  }
  if (config.o_groups > 0) {
    check_multiple("num_attention_heads", config.num_attention_heads, config.o_groups, "o_groups", problems);
  }
  if (!config.index_source_layer_ids.empty()) {
    check_multiple("index_head_dim", config.index_head_dim, 32, "the mxfp4 cache format scales groups of 32 channels",
                   problems);
    if (config.index_head_dim > 0 && config.qk_rope_head_dim > config.index_head_dim) {
      problems.add("index_head_dim", "wanted at least qk_rope_head_dim = ", config.qk_rope_head_dim, " but got ",
                   config.index_head_dim);
    }
  }
  if (config.candidate_source_layer_id >= 0 && !problems.has("index_source_layer_ids") &&
      !contains(config.index_source_layer_ids, config.candidate_source_layer_id)) {
    problems.add("candidate_source_layer_id", "wanted one of index_source_layer_ids, or -1 for none, but got ",
                 config.candidate_source_layer_id);
  }
}

// The rows of every Engram table, where the config says them, follow from the other fields.
void check_engram_tables(const ModelConfig& config, ConfigProblems& problems) {
  const auto& rows = config.engram_num_embeddings;
  if (rows.empty() || config.engram_vocab_size == 0 || config.engram_compressed_vocab_size == 0 ||
      config.engram_max_ngram_size == 0 || config.engram_n_heads == 0) {
    return;
  }
  std::vector<int64_t> wanted;
  const EngramFacts tables = {.layer_ids = config.engram_layer_ids,
                              .max_ngram_size = config.engram_max_ngram_size,
                              .num_heads = config.engram_n_heads,
                              .vocab_size = config.engram_vocab_size,
                              .compressed_vocab_size = config.engram_compressed_vocab_size};
  for (const auto& hash : make_engram_hashes(tables, 0)) wanted.push_back(hash.num_rows());
  const auto text = [](const std::vector<int64_t>& values) {
    std::string list;
    for (const int64_t value : values) list += (list.empty() ? "" : ", ") + std::to_string(value);
    return list;
  };
  if (rows != wanted) {
    problems.add("engram_num_embeddings", "wanted ", text(wanted),
                 " (as engram_layer_ids, engram_vocab_size, engram_n_heads and engram_max_ngram_size make it) but got ",
                 text(rows));
  }
}

void check_tokens(const ModelConfig& config, ConfigProblems& problems) {
  if (problems.has("vocab_size")) return;
  for (const int64_t id : config.eos_token_ids) {
    if (id < 0 || id >= config.vocab_size) {
      problems.add("eos_token_id", "wanted ids in [0, vocab_size = ", config.vocab_size, ") but got ", id);
    }
  }
  if (config.engram_layer_ids.empty()) return;
  if (!problems.has("num_hidden_layers")) {
    check_layer_ids("engram_layer_ids", config.engram_layer_ids, config.num_hidden_layers, problems);
  }
  check_at_most("engram_layer_ids", static_cast<int64_t>(config.engram_layer_ids.size()), kMaxEngramLayers, problems);
  // Every layer has a table for each n-gram size from 2 and each head; neither factor reaches 2^31.
  const int64_t tables = (config.engram_max_ngram_size - 1) * config.engram_n_heads;
  if (const auto layers = static_cast<int64_t>(config.engram_layer_ids.size()); tables > kMaxEngramTables / layers) {
    problems.add("engram_n_heads", "wanted at most ", kMaxEngramTables, " Engram tables but got ", layers,
                 " layers (engram_layer_ids) of ", tables, " (engram_n_heads * (engram_max_ngram_size - 1))");
  }
  if (problems.has("engram_layer_ids") || problems.has("engram_n_heads")) return;
  check_engram_tables(config, problems);
  if (config.engram_compressed_vocab_size > config.vocab_size) {
    problems.add("engram_compressed_vocab_size", "wanted at most vocab_size = ", config.vocab_size, " but got ",
                 config.engram_compressed_vocab_size);
  }
  if (config.engram_pad_token_id >= config.vocab_size) {
    problems.add("engram_pad_token_id", "wanted an id in [0, vocab_size = ", config.vocab_size, ") but got ",
                 config.engram_pad_token_id);
  }
}

}  // namespace

void check_consistency(const ModelConfig& config, ConfigProblems& problems) {
  check_layer_roles(config, problems);
  check_attention(config, problems);
  check_at_most("hc_mult", config.hc_mult, kMaxStreams, problems);
  check_at_most("index_topk", config.index_topk, kMaxSelection, problems);
  check_at_most("candidate_topk_blocks", config.candidate_topk_blocks, kMaxSelection, problems);
  const char* pairs = "bfloat16 products take channels in pairs";
  check_multiple("hidden_size", config.hidden_size, 2, pairs, problems);
  check_multiple("q_lora_rank", config.q_lora_rank, 2, pairs, problems);
  check_multiple("o_lora_rank", config.o_lora_rank, 2, pairs, problems);
  check_multiple("moe_intermediate_size", config.moe_intermediate_size, 2, pairs, problems);
  check_multiple("engram_head_dim", config.engram_head_dim, 2, pairs, problems);
  if (config.n_routed_experts > 0 && config.num_experts_per_tok > config.n_routed_experts) {
    problems.add("num_experts_per_tok", "wanted at most n_routed_experts = ", config.n_routed_experts, " but got ",
                 config.num_experts_per_tok);
  }
  check_tokens(config, problems);
}

}  // namespace reprise
