#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/json_file.h"
#include "models/config_reader.h"
#include "models/model_config_checks.h"
#include "reprise/config.h"

namespace reprise {
namespace {

using nlohmann::json;

constexpr const char* kSupportedTypes[] = {"deepseek_v41", "deepseek_v41_text"};

std::string require_supported_type(const json& object, const std::string& origin) {
  const auto type = object.find("model_type");
  const std::string got = type == object.end() ? "none" : type->dump();
  const bool supported = type != object.end() && type->is_string() &&
                         std::find(std::begin(kSupportedTypes), std::end(kSupportedTypes), type->get<std::string>()) !=
                             std::end(kSupportedTypes);
  REPRISE_REQUIRE(supported, "[", origin,
                  "] wanted model_type deepseek_v41 or deepseek_v41_text (what this engine supports) but got ", got);
  return type->get<std::string>();
}

// `dtype`, or its older name `torch_dtype`; bfloat16, the release's, when neither is there.
Dtype read_dtype(const ConfigReader& text, const ConfigReader& top, ConfigProblems& problems) {
  for (const auto* reader : {&text, &top}) {
    for (const char* field : {"dtype", "torch_dtype"}) {
      const auto name = reader->text(field);
      if (!name) continue;
      if (*name == "float32") return Dtype::kFloat32;
      if (*name != "bfloat16") problems.add(field, "wanted float32 or bfloat16 but got ", *name);
      return Dtype::kBFloat16;
    }
  }
  return Dtype::kBFloat16;
}

void read_sizes(const ConfigReader& text, ModelConfig& config) {
  config.vocab_size = text.integer("vocab_size", 1);
  config.hidden_size = text.integer("hidden_size", 1);
  config.num_hidden_layers = text.integer("num_hidden_layers", 1);
  config.num_attention_heads = text.integer("num_attention_heads", 1);
  config.head_dim = text.integer("head_dim", 1);
  config.qk_rope_head_dim = text.integer("qk_rope_head_dim", 2);
  config.q_lora_rank = text.integer("q_lora_rank", 1);
  config.o_groups = text.integer("o_groups", 1);
  config.o_lora_rank = text.integer("o_lora_rank", 1);
  config.sliding_window = text.integer("sliding_window", 1);
  config.max_position_embeddings = text.integer("max_position_embeddings", 1);
  config.rms_norm_eps = text.positive_number("rms_norm_eps");
  config.hc_mult = text.integer("hc_mult", 1);
  config.hc_sinkhorn_iters = text.integer("hc_sinkhorn_iters", 1);
  config.hc_eps = text.positive_number("hc_eps");
  config.n_routed_experts = text.integer("n_routed_experts", 1);
  config.num_experts_per_tok = text.integer("num_experts_per_tok", 1);
  config.moe_intermediate_size = text.integer("moe_intermediate_size", 1);
  config.routed_scaling_factor = text.positive_number("routed_scaling_factor");
  config.swiglu_limit = text.positive_number("swiglu_limit");
}

void read_sparse_attention(const ConfigReader& text, ModelConfig& config) {
  config.compress_ratios = text.integers("compress_ratios");
  config.kv_source_layer_ids = text.integers("kv_source_layer_ids");
  config.index_source_layer_ids = text.integers("index_source_layer_ids");
  // Releases with a drafter list its layers' ratios too.
  if (static_cast<int64_t>(config.compress_ratios.size()) > config.num_hidden_layers) {
    config.compress_ratios.resize(config.num_hidden_layers);
  }
  if (!config.index_source_layer_ids.empty()) {
    config.index_n_heads = text.integer("index_n_heads", 1);
    config.index_head_dim = text.integer("index_head_dim", 1);
    config.index_topk = text.integer("index_topk", 1);
  }
  config.candidate_source_layer_id = text.integer_or("candidate_source_layer_id", -1, -1);
  if (config.candidate_source_layer_id >= 0) {
    config.candidate_topk_blocks = text.integer("candidate_topk_blocks", 1);
    config.candidate_block_size = text.integer("candidate_block_size", 1);
  }
}

void read_rope(const json& text_object, const ConfigReader& text, ModelConfig& config, ConfigProblems& problems) {
  config.yarn_original_max_position = static_cast<double>(config.max_position_embeddings);
  if (!config.kv_source_layer_ids.empty()) config.compress_rope_theta = text.positive_number("compress_rope_theta");
  // `rope_scaling` is the older name; there rope_theta stands outside.
  const std::string field = text.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!text.has(field)) {
    config.rope_theta = text.positive_number("rope_theta");
    return;
  }
  const json& parameters = text_object.at(field);
  if (!parameters.is_object()) {
    problems.add(field, "wanted an object but got ", parameters.dump());
    return;
  }
  const ConfigReader rope(parameters, problems);
  config.rope_theta = rope.has("rope_theta") ? rope.positive_number("rope_theta") : text.positive_number("rope_theta");
  if (text.has("rope_theta") && text.positive_number("rope_theta") != config.rope_theta) {
    problems.add("rope_theta", "wanted the same value in ", field, " and beside it but got ", config.rope_theta,
                 " and ", text_object.at("rope_theta").dump());
  }
  const std::string type = rope.text(rope.has("rope_type") ? "rope_type" : "type").value_or("default");
  if (type == "yarn") {
    config.yarn_factor = rope.positive_number("factor");
    config.yarn_original_max_position = rope.positive_number("original_max_position_embeddings");
    config.yarn_beta_fast = rope.number_or("beta_fast", 32);
    config.yarn_beta_slow = rope.number_or("beta_slow", 1);
  } else if (type != "default") {
    problems.add(field + ".rope_type", "wanted yarn or default but got ", type);
  }
}

void read_engram(const ConfigReader& text, ModelConfig& config) {
  config.engram_layer_ids = text.integers_or_empty("engram_layer_ids");
  if (config.engram_layer_ids.empty()) return;
  config.engram_max_ngram_size = text.integer("engram_max_ngram_size", 2);
  config.engram_n_heads = text.integer("engram_n_heads", 1);
  config.engram_head_dim = text.integer("engram_head_dim", 1);
  config.engram_vocab_size = text.integer("engram_vocab_size", 1);
  config.engram_compressed_vocab_size = text.integer("engram_compressed_vocab_size", 1);
  config.engram_pad_token_id = text.integer("engram_pad_token_id", 0);
}

// Switches of the architecture that this engine knows in one position only; absent ones stand there.
void check_switches(const ConfigReader& text, const ConfigReader& top) {
  text.only("hidden_act", "silu");
  text.only("scoring_func", "sqrtsoftplus");
  text.only("topk_method", "noaux_tc");
  text.only("norm_topk_prob", true);
  text.only("n_shared_experts", 1);
  text.only("num_key_value_heads", 1);
  text.only("attention_bias", false);
  (text.has("tie_word_embeddings") ? text : top).only("tie_word_embeddings", false);
}

}  // namespace

ModelConfig load_model_config(const std::string& checkpoint_dir) {
  const std::string path = (std::filesystem::path(checkpoint_dir) / "config.json").string();
  const json top_object = read_config_file(checkpoint_dir);
  ModelConfig config;
  config.model_type = require_supported_type(top_object, path);
  const bool nested = top_object.contains("text_config") && !top_object["text_config"].is_null();
  const json& text_object = nested ? top_object["text_config"] : top_object;
  REPRISE_REQUIRE(text_object.is_object(), "[", path, "] wanted text_config to be an object but got ",
                  text_object.type_name());
  if (nested && text_object.contains("model_type")) {
    config.model_type = require_supported_type(text_object, path + ": text_config");
  }

  ConfigProblems problems;
  const ConfigReader top(top_object, problems);
  const ConfigReader text(text_object, problems);
  config.dtype = read_dtype(text, top, problems);
  read_sizes(text, config);
  read_sparse_attention(text, config);
  read_rope(text_object, text, config, problems);
  read_engram(text, config);
  config.eos_token_ids = (text.has("eos_token_id") ? text : top).integer_or_list("eos_token_id");
  check_switches(text, top);
  check_consistency(config, problems);
  problems.throw_if_any(path);
  return config;
}

}  // namespace reprise
