#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "../temporary_folder.h"
#include "reprise/config.h"

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
  const auto config = load(edited("v41-tiny", {{"compress_ratios", "[0, 0, 2, 2, 2, 1, 1, 1, 1, 1, 0, 0]"}}));
  EXPECT_EQ(config.compress_ratios, (Ids{0, 0, 2, 2, 2, 1, 1, 1, 1, 1}));
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
           {"hidden_size", "99999999999999999999", "hidden_size: wanted an integer"},
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
           {"rope_parameters", "{\"rope_type\": \"linear\"}", "rope_type: wanted yarn or default but got linear"},
           {"rope_parameters", "{\"rope_type\": \"yarn\", \"original_max_position_embeddings\": 4}", "factor: missing"},
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

TEST(ModelConfig, TakesTheLargestSizesItNames) {
  EXPECT_EQ(load(edited("v41-tiny", {{"hc_mult", "16"}, {"index_topk", "65536"}})).hc_mult, 16);
  EXPECT_EQ(load(edited("v41-tiny-engram", {{"engram_n_heads", "512"}})).engram_n_heads, 512);
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
