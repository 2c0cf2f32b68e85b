#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/json_file.h"
#include "models/config_fields.h"
#include "models/config_reader.h"
#include "models/model_config_checks.h"
#include "models/rope_config.h"
#include "reprise/config.h"
#include "reprise/generation_config.h"

namespace reprise {
namespace {

using nlohmann::json;

constexpr const char* kSupportedTypes[] = {"deepseek_v41", "deepseek_v41_text"};

// Far beyond any model of the family. Other sizes are held to the weights' shapes before anything is made of them;
// these drive loops and tables that no weight bounds.
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxSinkhornIters = 1000;  // of a row of a layer
constexpr int64_t kMaxPositions = 1 << 28;   // rows of the rotary tables
constexpr int64_t kMaxWindow = 1 << 20;      // rows of a request's window pages
constexpr int64_t kMaxBlock = 65536;         // compressed positions of a candidate block
constexpr int64_t kLeastPositions = 2;       // a prompt's token and one after it

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
  config.num_hidden_layers = text.integer("num_hidden_layers", 1, kMaxLayers);
  config.num_attention_heads = text.integer("num_attention_heads", 1);
  config.head_dim = text.integer("head_dim", 1);
  config.qk_rope_head_dim = text.integer("qk_rope_head_dim", 2);
  config.q_lora_rank = text.integer("q_lora_rank", 1);
  config.o_groups = text.integer("o_groups", 1);
  config.o_lora_rank = text.integer("o_lora_rank", 1);
  config.sliding_window = text.integer("sliding_window", 1, kMaxWindow);
  config.max_position_embeddings = text.integer("max_position_embeddings", kLeastPositions, kMaxPositions);
  config.rms_norm_eps = text.positive_number("rms_norm_eps");
  config.hc_mult = text.integer("hc_mult", 1);
  config.hc_sinkhorn_iters = text.integer("hc_sinkhorn_iters", 1, kMaxSinkhornIters);
  config.hc_eps = text.positive_number("hc_eps");
  config.n_routed_experts = text.integer("n_routed_experts", 1);
  config.num_experts_per_tok = text.integer("num_experts_per_tok", 1);
  config.moe_intermediate_size = text.integer("moe_intermediate_size", 1);
  config.routed_scaling_factor = text.positive_number("routed_scaling_factor");
  config.swiglu_limit = text.positive_number("swiglu_limit");
}

void read_sparse_attention(const ConfigReader& text, ModelConfig& config, ConfigProblems& problems) {
  config.compress_ratios = text.integers("compress_ratios");
  config.kv_source_layer_ids = text.integers("kv_source_layer_ids");
  config.index_source_layer_ids = text.integers("index_source_layer_ids");
  // Releases with a drafter list its layers' ratios too.
  const auto listed = static_cast<int64_t>(config.compress_ratios.size());
  const int64_t drafter_layers = text.integer_or("num_nextn_predict_layers", listed, 0);
  if (!problems.has("num_hidden_layers") && listed > config.num_hidden_layers) {
    if (listed > config.num_hidden_layers + drafter_layers) {
      problems.add("compress_ratios", "wanted one ratio for each of ", config.num_hidden_layers,
                   " layers (num_hidden_layers) and ", drafter_layers,
                   " of the drafter (num_nextn_predict_layers) but got ", listed);
    }
    config.compress_ratios.resize(static_cast<size_t>(config.num_hidden_layers));
  }
  if (!config.index_source_layer_ids.empty()) {
    config.index_n_heads = text.integer("index_n_heads", 1);
    config.index_head_dim = text.integer("index_head_dim", 1);
    config.index_topk = text.integer("index_topk", 1);
  }
  config.candidate_source_layer_id = text.integer_or("candidate_source_layer_id", -1, -1);
  if (config.candidate_source_layer_id >= 0) {
    config.candidate_topk_blocks = text.integer("candidate_topk_blocks", 1);
    config.candidate_block_size = text.integer("candidate_block_size", 1, kMaxBlock);
  }
}

// Two names of one field.
int64_t read_alias(const ConfigReader& text, const char* name, const char* alias, int64_t least,
                   ConfigProblems& problems) {
  if (!text.has(alias)) return text.integer(name, least);
  const int64_t value = text.integer(alias, least);
  if (text.has(name) && text.integer(name, least) != value) {
    problems.add(alias, "wanted the same value as ", name, " = ", text.integer(name, least), " but got ", value);
  }
  return value;
}

void read_engram(const ConfigReader& text, ModelConfig& config, ConfigProblems& problems) {
  config.engram_layer_ids = text.integers_or_empty("engram_layer_ids");
  if (config.engram_layer_ids.empty()) return;
  config.engram_max_ngram_size = text.integer("engram_max_ngram_size", 2);
  config.engram_n_heads = text.integer("engram_n_heads", 1);
  config.engram_head_dim = text.integer("engram_head_dim", 1);
  config.engram_vocab_size = text.integer("engram_vocab_size", 1);
  config.engram_compressed_vocab_size = text.integer("engram_compressed_vocab_size", 1);
  config.engram_pad_token_id = read_alias(text, "engram_pad_token_id", "engram_pad_id", 0, problems);
  if (problems.has("engram_layer_ids")) return;
  // The library that writes configs fills the list with zeros where it is not told the sizes.
  const std::vector<int64_t> rows = text.integers_or_empty("engram_num_embeddings");
  const bool said = std::any_of(rows.begin(), rows.end(), [](int64_t size) { return size != 0; });
  if (said) config.engram_num_embeddings = rows;
}

// Every layer is a mixture of routed experts.
void check_mlp_layer_types(const json& text_object, ConfigProblems& problems) {
  const auto types = text_object.find("mlp_layer_types");
  if (types == text_object.end() || types->is_null()) return;
  const bool good = types->is_array() && std::all_of(types->begin(), types->end(), [](const json& type) {
                      return type == "moe" || type == "sparse";
                    });
  if (!good) problems.add("mlp_layer_types", "wanted \"moe\" for every layer but got ", types->dump());
}

void check_quantization(const json& object, ConfigProblems& problems, std::vector<std::string>& unknown) {
  const auto quantization = object.find("quantization_config");
  if (quantization == object.end() || quantization->is_null()) return;
  if (!quantization->is_object()) {
    problems.add("quantization_config", "wanted an object but got ", quantization->dump());
    return;
  }
  check_fields(*quantization, ConfigSection::kQuantization, "quantization_config.", problems, unknown);
}

// The ids that end a text: of the text backbone, of the model around it and of generation_config.json.
void read_eos_tokens(const std::string& checkpoint_dir, const ConfigReader& text, const ConfigReader& top,
                     ModelConfig& config, ConfigProblems& problems) {
  const GenerationConfig generation = load_generation_config(checkpoint_dir);
  for (const int64_t id : generation.eos_token_ids) {
    if (!problems.has("vocab_size") && (id < 0 || id >= config.vocab_size)) {
      problems.add("generation_config.json: eos_token_id", "wanted ids in [0, vocab_size = ", config.vocab_size,
                   ") but got ", id);
    }
  }
  config.eos_token_ids = text.integer_or_list("eos_token_id");
  for (const auto& more : {top.integer_or_list("eos_token_id"), generation.eos_token_ids}) {
    for (const int64_t id : more) {
      auto& ids = config.eos_token_ids;
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
    }
  }
  config.notices.insert(config.notices.end(), generation.notices.begin(), generation.notices.end());
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
  std::vector<std::string> unknown;
  const ConfigReader top(top_object, problems);
  const ConfigReader text(text_object, problems);
  check_fields(text_object, ConfigSection::kText, "", problems, unknown);
  check_quantization(text_object, problems, unknown);
  if (nested) {
    check_fields(top_object, ConfigSection::kModel, "", problems, unknown);
    check_quantization(top_object, problems, unknown);
  }
  check_mlp_layer_types(text_object, problems);
  config.dtype = read_dtype(text, top, problems);
  read_sizes(text, config);
  if (text.has("num_local_experts")) {
    read_alias(text, "n_routed_experts", "num_local_experts", 1, problems);
  }
  read_sparse_attention(text, config, problems);
  read_rope(text_object, config, problems, unknown);
  read_engram(text, config, problems);
  if (!unknown.empty()) config.notices.push_back("config.json holds unknown fields: " + joined(unknown));
  read_eos_tokens(checkpoint_dir, text, top, config, problems);
  check_consistency(config, problems);
  problems.throw_if_any(path);
  return config;
}

}  // namespace reprise
