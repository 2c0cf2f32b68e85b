#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "../temporary_folder.h"
#include "reprise/config.h"
#include "reprise/generation_config.h"

namespace reprise {
namespace {

using testing::complaint;
using Ids = std::vector<int64_t>;
using testing::read_text;
using testing::says;
using testing::TemporaryFolder;

const std::string kFixtures = REPRISE_TEST_DATA;

// The text of a fixture's config.json with fields of its text_config replaced.
using Fields = std::vector<std::pair<std::string, std::string>>;
std::string edited(const std::string& fixture, const Fields& fields) {
  std::string text = read_text(kFixtures + "/" + fixture + "/config.json");
  for (const auto& [field, value] : fields) {
    const auto section = text.find("\"text_config\"");
    const auto key = text.find("\n  \"" + field + "\": ", section);
    if (key == std::string::npos) throw std::logic_error("the fixture has no field " + field);
    const auto begin = text.find(": ", key) + 2;
    const char last = text[begin] == '[' ? ']' : text[begin] == '{' ? '}' : '\0';
    const auto end = last != '\0' ? text.find(last, begin) + 1 : text.find_first_of(",\n", begin);
    text.replace(begin, end - begin, value);
  }
  return text;
}

void replace_in_text_config(std::string& text, const std::string& part, const std::string& by) {
  const auto begin = text.find(part, text.find("\"text_config\""));
  if (begin == std::string::npos) throw std::logic_error("the fixture has no " + part);
  text.replace(begin, part.size(), by);
}

ModelConfig load(const std::string& config_json) {
  TemporaryFolder folder;
  folder.write("config.json", config_json);
  return load_model_config(folder.path());
}

std::string complaint_of(const std::string& fixture, const Fields& fields) {
  return complaint([&] { load(edited(fixture, fields)); });
}

TEST(ModelConfig, ReadsTheFixture) {
  const ModelConfig config = load_model_config(kFixtures + "/v41-tiny");
  EXPECT_EQ(config.model_type, "deepseek_v41_text");
  EXPECT_EQ(config.dtype, Dtype::kFloat32);
  EXPECT_EQ(config.vocab_size, 288);
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.num_hidden_layers, 10);
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_EQ(config.qk_rope_head_dim, 16);
  EXPECT_EQ(config.sliding_window, 8);
  EXPECT_EQ(config.compress_ratios, (Ids{0, 0, 2, 2, 2, 1, 1, 1, 1, 1}));
  EXPECT_EQ(config.kv_source_layer_ids, (Ids{2, 5}));
  EXPECT_EQ(config.index_source_layer_ids, (Ids{2, 5, 7}));
  EXPECT_EQ(config.candidate_source_layer_id, 5);
  EXPECT_EQ(config.candidate_topk_blocks, 6);
  EXPECT_EQ(config.candidate_block_size, 4);
  EXPECT_EQ(config.rope_theta, 1e4);
  EXPECT_EQ(config.compress_rope_theta, 1.6e5);
  EXPECT_EQ(config.yarn_factor, 16);
  EXPECT_EQ(config.yarn_original_max_position, 65536);
  EXPECT_EQ(config.rms_norm_eps, 1e-20);
  EXPECT_EQ(config.swiglu_limit, 1.5);
  EXPECT_EQ(config.engram_layer_ids, (Ids{}));
  EXPECT_EQ(config.eos_token_ids, (Ids{1}));
  EXPECT_EQ(config.num_encoder_layers(), 6);
}

TEST(ModelConfig, ReadsEngram) {
  const ModelConfig config = load_model_config(kFixtures + "/v41-tiny-engram");
  EXPECT_EQ(config.engram_layer_ids, (Ids{1}));
  EXPECT_EQ(config.engram_compressed_vocab_size, 242);
  EXPECT_EQ(config.engram_max_ngram_size, 3);
  EXPECT_EQ(config.engram_vocab_size, 61);
  EXPECT_EQ(config.engram_pad_token_id, 2);
}

TEST(ModelConfig, EveryLayerKnowsItsSources) {
  const ModelConfig config = load_model_config(kFixtures + "/v41-tiny");
  const std::vector<int64_t> kv = {-1, -1, 2, 2, 2, 5, 5, 5, 5, 5};
  const std::vector<int64_t> index = {-1, -1, 2, 2, 2, 5, 5, 7, 7, 7};
  for (int64_t layer = 0; layer < 10; ++layer) {
    EXPECT_EQ(config.kv_source_of(layer), kv[layer]) << "layer " << layer;
    EXPECT_EQ(config.index_source_of(layer), index[layer]) << "layer " << layer;
  }
}

TEST(ModelConfig, WindowOnlyLayerBetweenSourcesReadsNone) {
  const auto config = load(edited("v41-tiny", {{"compress_ratios", "[0, 0, 2, 0, 2, 1, 1, 1, 1, 1]"}}));
  EXPECT_EQ(config.kv_source_of(3), -1);
  EXPECT_EQ(config.index_source_of(3), -1);
  EXPECT_EQ(config.kv_source_of(4), 2);
}

TEST(ModelConfig, TakesATextBackboneByItself) {
  const std::string whole = read_text(kFixtures + "/v41-tiny/config.json");
  const auto begin = whole.find('{', whole.find("\"text_config\""));
  const auto end = whole.find("\n }", begin) + 3;
  const ModelConfig config = load(whole.substr(begin, end - begin));
  EXPECT_EQ(config.model_type, "deepseek_v41_text");
  EXPECT_EQ(config.hidden_size, 64);
}

TEST(ModelConfig, KnowsOlderSpellings) {
  std::string text = edited("v41-tiny", {{"eos_token_id", "[1, 7]"}, {"rope_theta", "20000"}});
  replace_in_text_config(text, "\"rope_theta\": 10000.0,\n   \"rope_type\"", "\"type\"");
  replace_in_text_config(text, "\"rope_parameters\"", "\"rope_scaling\"");
  replace_in_text_config(text, "\"dtype\": \"float32\"", "\"torch_dtype\": \"bfloat16\"");
  const ModelConfig config = load(text);
  EXPECT_EQ(config.eos_token_ids, (Ids{1, 7}));
  EXPECT_EQ(config.rope_theta, 20000);
  EXPECT_EQ(config.yarn_factor, 16);
  EXPECT_EQ(config.dtype, Dtype::kBFloat16);
}

TEST(ModelConfig, PlainRopeInterpolatesNothing) {
  const auto config = load(edited("v41-tiny", {{"rope_parameters", "{\"rope_type\": \"default\"}"}}));
  EXPECT_EQ(config.yarn_factor, 1);
  EXPECT_EQ(config.rope_theta, 1e4);
  EXPECT_EQ(config.compress_rope_theta, 1.6e5);
}

TEST(ModelConfig, CutsTheRatiosOfDrafterLayers) {
  const Fields fields = {{"compress_ratios", "[0, 0, 2, 2, 2, 1, 1, 1, 1, 1, 0, 0]"},
                         {"num_nextn_predict_layers", "2"}};
  EXPECT_EQ(load(edited("v41-tiny", fields)).compress_ratios, (Ids{0, 0, 2, 2, 2, 1, 1, 1, 1, 1}));
  // Layers that the drafter does not have: num_hidden_layers was cut, or the list is another model's.
  EXPECT_TRUE(says(complaint_of("v41-tiny", {fields[0], {"num_nextn_predict_layers", "1"}}),
                   "compress_ratios: wanted one ratio for each of 10 layers (num_hidden_layers) and 1 of the drafter "
                   "(num_nextn_predict_layers) but got 12"));
}

TEST(ModelConfig, AModelWithoutCompressedKvNeedsNoIndexer) {
  const auto config = load(edited("v41-tiny", {{"compress_ratios", "[0, 0, 0, 0, 0, 0, 0, 0, 0, 0]"},
                                               {"kv_source_layer_ids", "[]"},
                                               {"index_source_layer_ids", "[]"},
                                               {"candidate_source_layer_id", "-1"},
                                               {"index_n_heads", "0"}}));
  EXPECT_EQ(config.num_encoder_layers(), 0);
}

TEST(ModelConfig, NamesTheFieldThatIsWrong) {
  struct Case {
    const char* field;
    const char* value;
    const char* said;
  };
  for (const auto& [field, value, said] : std::vector<Case>{
           {"compress_ratios", "[0, 0, 2]", "compress_ratios: wanted one ratio for each of the 10 layers"},
           {"compress_ratios", "[0, 2, 2, 2, 2, 1, 1, 1, 1, 1]", "layer 1 has ratio 2 but no KV source"},
           {"compress_ratios", "[0, 0, 2, 2, 1, 1, 1, 1, 1, 1]",
            "layer 4 has ratio 1 but reads the KV source at layer 2"},
           {"compress_ratios", "[0, 0, 2, 2, 2, 0, 1, 1, 1, 1]", "kv_source_layer_ids"},
           {"compress_ratios", "[0, 0, 2, -2, 2, 1, 1, 1, 1, 1]", "got -2"},
           {"compress_ratios", "\"2\"", "compress_ratios: wanted a list of integers but got \"2\""},
           {"kv_source_layer_ids", "[5, 2]", "kv_source_layer_ids: wanted ascending layers but got 2 after 5"},
           {"kv_source_layer_ids", "[2, 10]", "kv_source_layer_ids: wanted layers in [0, 10) but got 10"},
           {"index_source_layer_ids", "[2, 7]",
            "index_source_layer_ids: wanted every KV source among them but layer 5"},
           {"index_source_layer_ids", "[1, 2, 5]",
            "index_source_layer_ids: wanted layers with a compress ratio above 0"},
           {"candidate_source_layer_id", "6", "candidate_source_layer_id: wanted one of index_source_layer_ids"},
           {"candidate_block_size", "0", "candidate_block_size: wanted an integer of at least 1 but got 0"},
           {"head_dim", "40", "head_dim: wanted a multiple of 32"},
           {"index_head_dim", "16", "index_head_dim: wanted a multiple of 32"},
           {"qk_rope_head_dim", "15", "qk_rope_head_dim: wanted a multiple of 2"},
           {"qk_rope_head_dim", "64", "qk_rope_head_dim: wanted at most head_dim = 32 but got 64"},
           {"o_groups", "3", "num_attention_heads: wanted a multiple of 3 (o_groups)"},
           {"num_experts_per_tok", "5", "num_experts_per_tok: wanted at most n_routed_experts = 4 but got 5"},
           {"hidden_size", "0", "hidden_size: wanted an integer of at least 1 but got 0"},
           {"hidden_size", "64.5", "hidden_size: wanted an integer of at least 1 but got 64.5"},
           {"hidden_size", "99999999999999999999",
            "hidden_size: wanted an integer of at most 2147483647 but got 1e+20"},
           {"hidden_size", "2147483648", "hidden_size: wanted an integer of at most 2147483647 but got 2147483648"},
           {"hidden_size", "-99999999999999999999", "hidden_size: wanted an integer of at least 1 but got -1e+20"},
           {"compress_ratios", "[4294967296]", "compress_ratios: wanted integers from -2147483647 to 2147483647"},
           {"compress_ratios", "[0, 0, 70000, 2, 2, 1, 1, 1, 1, 1]", "compress_ratios: wanted at most 65536"},
           {"num_hidden_layers", "4097", "num_hidden_layers: wanted an integer of at most 4096 but got 4097"},
           {"sliding_window", "2147483647", "sliding_window: wanted an integer of at most 1048576"},
           {"candidate_block_size", "65537", "candidate_block_size: wanted an integer of at most 65536"},
           {"hc_sinkhorn_iters", "2147483647",
            "hc_sinkhorn_iters: wanted an integer of at most 1000 but got 2147483647"},
           {"max_position_embeddings", "1", "max_position_embeddings: wanted an integer of at least 2 but got 1"},
           {"max_position_embeddings", "2147483647", "max_position_embeddings: wanted an integer of at most 268435456"},
           {"rms_norm_eps", "1e308",
            "rms_norm_eps: wanted a number that float32 holds, from 1.17549e-38 to 3.40282e+38, but got 1e+308"},
           {"compress_rope_theta", "1e-320", "compress_rope_theta: wanted a number that float32 holds"},
           {"routed_scaling_factor", "1e308", "routed_scaling_factor: wanted a number that float32 holds"},
           {"swiglu_limit", "1e39", "swiglu_limit: wanted a number that float32 holds"},
           {"hc_eps", "1e-60", "hc_eps: wanted a number that float32 holds"},
           {"compress_rope_theta", "1", "compress_rope_theta: wanted a number above 1 but got 1"},
           {"engram_layer_ids", "[0.5]", "engram_layer_ids: wanted a list of integers but got [0.5]"},
           {"moe_intermediate_size", "33", "moe_intermediate_size: wanted a multiple of 2"},
           {"vocab_size", "null", "vocab_size: missing"},
           {"rms_norm_eps", "0", "rms_norm_eps: wanted a number above 0 but got 0"},
           {"eos_token_id", "288", "eos_token_id: wanted ids in [0, vocab_size = 288) but got 288"},
           {"scoring_func", "\"sigmoid\"", "scoring_func: wanted \"sqrtsoftplus\" (the only one supported) but got"},
           {"hidden_act", "\"gelu\"", "hidden_act: wanted \"silu\""},
           {"topk_method", "\"greedy\"", "topk_method: wanted \"noaux_tc\""},
           {"n_shared_experts", "2", "n_shared_experts: wanted 1"},
           {"tie_word_embeddings", "true", "tie_word_embeddings: wanted false"},
           {"hc_mult", "17", "hc_mult: wanted at most 16 but got 17"},
           {"index_topk", "2147483647", "index_topk: wanted at most 65536 but got 2147483647"},
           {"candidate_topk_blocks", "65537", "candidate_topk_blocks: wanted at most 65536 but got 65537"},
           {"dtype", "\"float16\"", "dtype: wanted float32 or bfloat16 but got float16"},
           {"rope_theta", "5", "rope_theta: wanted the same value"},
           {"rope_parameters", "{\"rope_type\": \"linear\"}",
            "rope_parameters.rope_type: wanted yarn or default but got linear"},
           {"rope_parameters", "{\"rope_type\": \"yarn\", \"original_max_position_embeddings\": 4}",
            "\n  rope_parameters.factor: missing"},
           {"rope_parameters", "{\"factor\": 16, \"original_max_position_embeddings\": 4}",
            "rope_parameters.rope_type: missing beside a factor"},
           {"rope_parameters", "{\"rope_type\": \"default\", \"attention_factor\": 1.27}",
            "rope_parameters.attention_factor: wanted 1 (the only one supported) but got 1.27"},
           {"rope_parameters", "{\"rope_type\": \"default\", \"partial_rotary_factor\": 0.25}",
            "rope_parameters.partial_rotary_factor: wanted qk_rope_head_dim / head_dim = 0.5 but got 0.25"},
           {"rope_parameters", "{\"rope_type\": \"default\", \"type\": \"yarn\"}",
            "rope_parameters.type: wanted the same value as rope_type = default but got yarn"},
           {"rope_parameters", "[1]", "rope_parameters: wanted an object but got [1]"},
       }) {
    EXPECT_TRUE(says(complaint_of("v41-tiny", {{field, value}}), said)) << field << " = " << value;
  }
  EXPECT_TRUE(says(complaint_of("v41-tiny-engram", {{"engram_layer_ids", "[10]"}}),
                   "engram_layer_ids: wanted layers in [0, 10) but got 10"));
  EXPECT_TRUE(says(complaint_of("v41-tiny-engram", {{"engram_compressed_vocab_size", "300"}}),
                   "engram_compressed_vocab_size: wanted at most vocab_size = 288 but got 300"));
  EXPECT_TRUE(says(complaint_of("v41-tiny-engram", {{"engram_pad_token_id", "288"}}), "engram_pad_token_id"));
  EXPECT_TRUE(says(complaint_of("v41-tiny-engram", {{"engram_n_heads", "513"}}),
                   "engram_n_heads: wanted at most 1024 Engram tables but got 1 layers (engram_layer_ids) of 1026"));
  EXPECT_TRUE(says(complaint_of("v41-tiny-engram", {{"engram_max_ngram_size", "2147483647"}}), "1024 Engram tables"));
}

// A text_config of v41-tiny with another field beside its own.
std::string with_field(const std::string& field, const std::string& value, const std::string& fixture = "v41-tiny") {
  std::string text = read_text(kFixtures + "/" + fixture + "/config.json");
  const auto begin = text.find('{', text.find("\"text_config\"")) + 1;
  return text.insert(begin, "\"" + field + "\": " + value + ",");
}

TEST(ModelConfig, ReadsTheRotaryGroups) {
  const std::string main = R"({"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5})";
  const std::string compress =
      R"({"rope_type": "yarn", "rope_theta": 160000, "factor": 4, "original_max_position_embeddings": 1024,
          "beta_fast": 16, "beta_slow": 2, "attention_factor": 1.0, "partial_rotary_factor": 0.5, "truncate": true})";
  const auto groups = [](const std::string& main_group, const std::string& compress_group,
                         const std::string& more = "") {
    std::string text = read_text(kFixtures + "/v41-tiny/config.json");
    const auto begin = text.find("{", text.find("\"rope_parameters\""));
    text.replace(begin, text.find('}', begin) + 1 - begin,
                 "{\"main\": " + main_group + ", \"compress\": " + compress_group + more + "}");
    return text;
  };
  const ModelConfig config = load(groups(main, compress));
  EXPECT_EQ(config.rope_theta, 10000);
  EXPECT_EQ(config.compress_rope_theta, 160000);
  EXPECT_EQ(config.yarn_factor, 4);
  EXPECT_EQ(config.yarn_original_max_position, 1024);
  EXPECT_EQ(config.yarn_beta_fast, 16);
  EXPECT_EQ(config.yarn_beta_slow, 2);
  EXPECT_TRUE(config.notices.empty());
  // Both thetas may stand in the groups alone.
  std::string alone = groups(main, compress);
  replace_in_text_config(alone, "\"compress_rope_theta\": 160000.0,", "");
  replace_in_text_config(alone, "\n  \"rope_theta\": 10000.0,", "");
  EXPECT_EQ(load(alone).compress_rope_theta, 160000);
  EXPECT_EQ(load(alone).rope_theta, 10000);
  // The older name beside the groups says the same, or is refused.
  const auto beside = [&](const std::string& scaling) {
    std::string text = groups(main, compress);
    replace_in_text_config(text, "\"rope_theta\": 10000.0,\n  \"routed",
                           "\"rope_scaling\": " + scaling + ",\n  \"routed");
    replace_in_text_config(text, "\"rms_norm_eps\"", "\"rope_theta\": 10000.0, \"rms_norm_eps\"");
    return complaint([&] { load(text); });
  };
  const std::string scaling = R"({"type": "yarn", "factor": 4, "original_max_position_embeddings": 1024,
                                  "beta_fast": 16, "beta_slow": 2})";
  EXPECT_EQ(beside(scaling), "");
  EXPECT_TRUE(says(beside(R"({"type": "yarn", "factor": 8, "original_max_position_embeddings": 1024})"),
                   "rope_scaling: wanted the same scaling as in rope_parameters"));

  struct Case {
    std::string config;
    const char* said;
  };
  const std::string half = R"({"rope_type": "yarn", "rope_theta": 160000})";
  for (const auto& [text, said] : std::vector<Case>{
           {groups(main, half), "\n  rope_parameters.compress.factor: missing"},
           {groups(main, "null"), "\n  rope_parameters.compress: missing"},
           {groups("7", compress), "\n  rope_parameters.main: wanted an object but got 7"},
           {groups(compress, compress), "rope_parameters.main.rope_type: wanted default"},
           {groups(R"({"rope_theta": 500})", compress),
            "wanted the same value as rope_parameters.main.rope_theta = 500"},
           {groups(main, R"({"rope_theta": 500})"), "compress_rope_theta: wanted the same value as"},
           {groups(main, compress, ", \"vision\": {}"), "rope_parameters.vision: wanted the groups main and compress"},
           {groups(main, compress, ", \"factor\": 5"), "rope_parameters.factor: wanted the groups main and compress"},
       }) {
    EXPECT_TRUE(says(complaint([&config = text] { load(config); }), said));
  }
  EXPECT_EQ(complaint([&] { load(groups(main, compress, ", \"rope_type\": \"default\", \"factor\": 4")); }), "");
}

// The fields of DeepSeek-V4.1-Flash's config.json, as they are published; the rows of its Engram tables follow from the
// others.
TEST(ModelConfig, ReadsTheReleasedModelWithoutANotice) {
  std::string ratios = "0, 0";
  for (int layer = 2; layer < 43; ++layer) ratios += layer < 20 ? ", 2" : layer < 40 ? ", 1" : ", 0";
  const std::string text = R"({"model_type": "deepseek_v41_text", "vocab_size": 129280, "hidden_size": 5120,
    "moe_intermediate_size": 2304, "num_hidden_layers": 40, "num_attention_heads": 64, "num_key_value_heads": 1,
    "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1280, "o_lora_rank": 1024, "o_groups": 8, "hidden_act": "silu",
    "swiglu_limit": 10.0, "rms_norm_eps": 1e-20, "attention_bias": false, "attention_dropout": 0.0,
    "initializer_range": 0.02, "use_cache": true, "tie_word_embeddings": false, "max_position_embeddings": 1048576,
    "rope_theta": 10000, "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
    "original_max_position_embeddings": 65536}, "n_routed_experts": 384, "n_shared_experts": 1, "num_experts_per_tok": 6,
    "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": true, "routed_scaling_factor": 1.5,
    "sliding_window": 128, "compress_rope_theta": 160000, "kv_source_layer_ids": [2, 8, 14, 20],
    "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36], "index_n_heads": 32, "index_head_dim": 128,
    "index_topk": 512, "candidate_source_layer_id": 20, "candidate_topk_blocks": 2048, "candidate_block_size": 8,
    "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-06, "engram_layer_ids": [1, 14],
    "engram_num_embeddings": [384006168, 384016682], "engram_max_ngram_size": 4, "engram_vocab_size": 16000000,
    "engram_n_heads": 8, "engram_head_dim": 256, "engram_pad_token_id": 2, "engram_compressed_vocab_size": 99092,
    "num_nextn_predict_layers": 3, "dspark_block_size": 5, "dspark_noise_token_id": 128799,
    "dspark_target_layer_ids": [37, 38, 39], "dspark_markov_rank": 256, "dspark_n_routed_experts": 128,
    "dspark_num_experts_per_tok": 3, "compress_ratios": [)" +
                           ratios + "]}";
  const ModelConfig config = load(
      R"({"architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "dtype": "bfloat16",
          "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "image_token_id": 129264, "quantization_config":
          {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32], "scale_fmt": "ue8m0",
           "expert_dtype": "fp4"}, "vision_config": {"num_hidden_layers": 32}, "text_config": )" +
      text + "}");
  EXPECT_EQ(config.notices, std::vector<std::string>{});
  EXPECT_EQ(config.num_encoder_layers(), 21);
  EXPECT_EQ(config.compress_ratios.size(), 40u);
  EXPECT_EQ(config.rope_theta, 10000);
  EXPECT_EQ(config.compress_rope_theta, 160000);
  EXPECT_EQ(config.yarn_factor, 16);
}

TEST(ModelConfig, RefusesWhatWouldChangeTheModel) {
  struct Case {
    const char* field;
    const char* good;
    const char* bad;
  };
  for (const auto& [field, good, bad] : std::vector<Case>{
           {"n_group", "1", "2"},
           {"topk_group", "1", "4"},
           {"gate_temp", "1.0", "0.5"},
           {"num_hash_layers", "0", "3"},
           {"first_k_dense_replace", "0", "1"},
           {"moe_layer_freq", "1", "2"},
           {"mlp_bias", "false", "true"},
           {"is_causal", "true", "false"},
           {"rope_interleave", "true", "false"},
           {"num_local_experts", "4", "8"},
           {"partial_rotary_factor", "0.5", "1.0"},
           {"mlp_layer_types", "[\"moe\"]", "[\"hash_moe\", \"moe\"]"},
           {"engram_pad_id", "2", "3"},
           {"quantization_config", R"({"quant_method": "fp8", "weight_block_size": [32, 32], "scale_fmt": "ue8m0",
                                       "expert_dtype": "fp4", "activation_scheme": "dynamic", "fmt": "e4m3"})",
            R"({"quant_method": "gptq", "bits": 4})"},
           {"quantization_config", "null", R"({"quant_method": "fp8", "weight_block_size": [128, 128]})"},
       }) {
    EXPECT_EQ(load(with_field(field, good, "v41-tiny-engram")).notices, std::vector<std::string>{}) << field;
    EXPECT_TRUE(says(complaint([&] { load(with_field(field, bad, "v41-tiny-engram")); }), std::string("\n  ") + field));
  }
  EXPECT_TRUE(says(complaint([&] { load(with_field("quantization_config", "{\"quant_method\": \"awq\"}")); }),
                   "quantization_config.quant_method: wanted \"fp8\" (the only one supported) but got \"awq\""));
  EXPECT_TRUE(
      says(complaint_of("v41-tiny-engram", {{"engram_num_embeddings", "[271]"}}), "engram_num_embeddings: wanted 272"));
}

TEST(ModelConfig, SaysWhichFieldsItDoesNotKnow) {
  EXPECT_EQ(load_model_config(kFixtures + "/v41-tiny").notices, std::vector<std::string>{});
  EXPECT_EQ(load(with_field("attn_gate\\u001b", "true")).notices,
            std::vector<std::string>{"config.json holds unknown fields: attn_gate\\x1b"});
  std::string text = with_field("zeta", "1");
  replace_in_text_config(text, "\"beta_fast\"", "\"gamma\": 2, \"beta_fast\"");
  EXPECT_EQ(load(text).notices,
            std::vector<std::string>{"config.json holds unknown fields: zeta, rope_parameters.gamma"});
}

TEST(ModelConfig, UnitesTheIdsThatEndAText) {
  TemporaryFolder folder;
  folder.write("config.json", read_text(kFixtures + "/v41-tiny/config.json"));
  const auto with = [&](const std::string& generation_config) {
    folder.write("generation_config.json", generation_config);
    return load_model_config(folder.path());
  };
  EXPECT_EQ(with("{\"eos_token_id\": [7, 1, 9]}").eos_token_ids, (Ids{1, 7, 9}));
  EXPECT_EQ(with("{\"eos_token_id\": 5}").eos_token_ids, (Ids{1, 5}));
  EXPECT_EQ(with("{}").eos_token_ids, (Ids{1}));
  EXPECT_TRUE(says(complaint([&] { with("{\"eos_token_id\": [288]}"); }),
                   "generation_config.json: eos_token_id: wanted ids in [0, vocab_size = 288) but got 288"));
  EXPECT_TRUE(says(complaint([&] { with("{\"eos_token_id\": \"x\"}"); }), "generation_config.json] 1 problem"));
  EXPECT_TRUE(says(complaint([&] { with("{"); }), "generation_config.json] wanted valid JSON"));
  EXPECT_EQ(with("{\"repetition_penalty\": 1.1, \"top_q\": 1, \"num_beams\": 1}").notices,
            (std::vector<std::string>{"generation_config.json asks for repetition_penalty = 1.1, which is not applied",
                                      "generation_config.json holds unknown fields: top_q"}));
}

TEST(GenerationConfig, ReadsTheDefaultsOfSampling) {
  TemporaryFolder folder;
  const auto with = [&](const std::string& text) {
    folder.write("generation_config.json", text);
    return load_generation_config(folder.path());
  };
  EXPECT_FALSE(load_generation_config(folder.path()).temperature);
  const GenerationConfig config = with(
      R"({"_from_model_config": true, "bos_token_id": 0, "eos_token_id": 1, "do_sample": true, "temperature": 0.6,
          "top_p": 0.95, "top_k": 20, "min_p": 0.05, "max_new_tokens": 100, "stop_strings": "END",
          "transformers_version": "4.46.3"})");
  EXPECT_EQ(config.temperature, 0.6);
  EXPECT_EQ(config.top_p, 0.95);
  EXPECT_EQ(config.top_k, 20);
  EXPECT_EQ(config.min_p, 0.05);
  EXPECT_EQ(config.max_new_tokens, 100);
  EXPECT_EQ(config.stop_strings, std::vector<std::string>{"END"});
  EXPECT_TRUE(config.notices.empty());
  EXPECT_EQ(with(R"({"do_sample": false, "temperature": 0.6})").temperature, 0);
  EXPECT_FALSE(with(R"({"top_k": -1})").top_k);  // all tokens
  for (const auto& [field, value] : std::vector<std::pair<std::string, std::string>>{{"temperature", "-1"},
                                                                                     {"temperature", "\"hot\""},
                                                                                     {"temperature", "1e30"},
                                                                                     {"top_p", "0"},
                                                                                     {"top_p", "1.5"},
                                                                                     {"min_p", "-0.1"},
                                                                                     {"top_k", "-2"},
                                                                                     {"top_k", "1.5"},
                                                                                     {"top_k", "true"},
                                                                                     {"max_new_tokens", "0"},
                                                                                     {"do_sample", "1"},
                                                                                     {"stop_strings", "[\"\"]"},
                                                                                     {"eos_token_id", "-1"}}) {
    EXPECT_TRUE(says(complaint([&] { with("{\"" + field + "\": " + value + "}"); }), field + ": wanted")) << value;
  }
}

TEST(ModelConfig, TakesTheLargestSizesItNames) {
  EXPECT_EQ(load(edited("v41-tiny", {{"hc_mult", "16"}, {"index_topk", "65536"}})).hc_mult, 16);
  EXPECT_EQ(
      load(edited("v41-tiny-engram", {{"engram_n_heads", "512"}, {"engram_num_embeddings", "[0]"}})).engram_n_heads,
      512);
}

TEST(ModelConfig, NamesAllFieldsThatAreWrongAtOnce) {
  const std::string said = complaint_of("v41-tiny", {{"hidden_size", "-1"},
                                                     {"head_dim", "33"},
                                                     {"num_experts_per_tok", "9"},
                                                     {"hidden_act", "\"relu\""},
                                                     {"kv_source_layer_ids", "[2, 4]"}});
  for (const char* field :
       {"hidden_size: ", "head_dim: ", "num_experts_per_tok: ", "hidden_act: ", "compress_ratios: "}) {
    EXPECT_TRUE(says(said, field));
  }
  EXPECT_TRUE(says(said, "config.json"));
}

TEST(ModelConfig, ABadFieldIsNotHeldAgainstOthers) {
  const std::string said = complaint_of("v41-tiny", {{"n_routed_experts", "-4"}});
  EXPECT_TRUE(says(said, "n_routed_experts: wanted"));
  EXPECT_FALSE(says(said, "num_experts_per_tok"));
}

TEST(ModelConfig, SaysWhichModelsItKnows) {
  std::string text = read_text(kFixtures + "/v41-tiny/config.json");
  const auto type = text.find("\"model_type\": \"deepseek_v41\"");
  const std::string said = complaint([&] { load(text.replace(type, 28, "\"model_type\": \"llama\"")); });
  EXPECT_TRUE(says(said, "deepseek_v41_text"));
  EXPECT_TRUE(says(said, "but got \"llama\""));
  EXPECT_TRUE(says(complaint([] { load("{}"); }), "but got none"));
}

TEST(ModelConfig, SaysWhatIsWrongWithTheFolderOrFile) {
  const TemporaryFolder folder;
  EXPECT_TRUE(says(complaint([&] { load_model_config(folder / "absent"); }), "does not exist"));
  EXPECT_TRUE(says(complaint([&] { load_model_config(folder.path()); }), "has no config.json"));
  EXPECT_TRUE(says(complaint([] { load("{\"model_type\": "); }), "wanted valid JSON"));
  EXPECT_TRUE(says(complaint([] { load("[1]"); }), "wanted a JSON object but got array"));
  EXPECT_TRUE(says(complaint([] { load("{\"a\": {\"b\": 1, \"b\": 2}}"); }), "\"b\" twice"));
  EXPECT_TRUE(says(complaint([] { load(std::string(100000, '[')); }), "JSON"));
}

}  // namespace
}  // namespace reprise
