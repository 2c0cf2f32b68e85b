#include "runtime/engine_checks.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "../temporary_folder.h"
#include "engine_harness.h"
#include "reprise/error.h"

namespace reprise::testing {
namespace {

TEST(EngineChecks, NamesTheLimits) {
  struct Case {
    int64_t EngineConfig::* setting;
    const char* name;
    int64_t most;
  };
  const ModelFacts model = make_model_facts(load_model_config(data_path("v41-tiny")));
  for (const auto& [setting, name, most] : std::vector<Case>{
           {&EngineConfig::num_threads, "num_threads", 1024},
           {&EngineConfig::max_num_seqs, "max_num_seqs", 65536},
           {&EngineConfig::page_size, "page_size", 65536},
           {&EngineConfig::max_num_batched_tokens, "max_num_batched_tokens", 1048576},
       }) {
    EngineConfig config;
    config.*setting = most;
    EXPECT_EQ(check_engine_config(config, model).*setting, most);
    for (const int64_t value : {most + 1, int64_t{1} << 32, int64_t{1} << 58}) {
      config.*setting = value;
      EXPECT_TRUE(says(complaint([&] { (void)check_engine_config(config, model); }),
                       concat("[load] wanted ", name, " of at most ", most, " but got ", value)));
    }
  }
}

TEST(EngineChecks, EveryRunningRequestHasARow) {
  const ModelFacts model = make_model_facts(load_model_config(data_path("v41-tiny")));
  EngineConfig config;
  config.max_num_seqs = 20;
  config.max_num_batched_tokens = 16;
  EXPECT_EQ(check_engine_config(config, model).max_num_batched_tokens, 20);
  config.max_num_batched_tokens = 21;
  EXPECT_EQ(check_engine_config(config, model).max_num_batched_tokens, 21);
}

// A step has no more rows than its requests have tokens, so that steps without a limit take no memory: 2^20 rows of
// 65536 selected entries would be 256 GiB.
TEST(EngineChecks, StepsTakeMemoryForTheRowsThatCanCome) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink(data_path("v41-tiny") + "/model.safetensors", folder / "model.safetensors");
  std::string text = read_text(data_path("v41-tiny") + "/config.json");
  const std::string field = "\"index_topk\": ";
  const size_t value = text.find(field) + field.size();
  folder.write("config.json", text.replace(value, text.find(',', value) - value, "65536"));
  EngineConfig config = tiny_config("v41-tiny");
  config.max_num_seqs = 2;
  config.max_model_len = 64;
  config.max_num_batched_tokens = 1 << 20;
  const auto engine = Engine::load(folder.path(), config);
  EXPECT_EQ(run(*engine, {greedy_request({5, 6, 7}, 3), greedy_request({8, 9}, 3)}).back().tokens.size(), 3u);
}

// The sizes that the weights do not have are named, however large.
TEST(EngineChecks, AConfigThatLiesIsRefusedWithTheShapes) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink(data_path("v41-tiny") + "/model.safetensors", folder / "model.safetensors");
  const std::string whole = read_text(data_path("v41-tiny") + "/config.json");
  for (const std::string name : {"hidden_size", "num_attention_heads"}) {
    std::string text = whole;
    const std::string field = "\n  \"" + name + "\": ";
    const size_t value = text.find(field) + field.size();
    folder.write("config.json", text.replace(value, text.find(',', value) - value, "1073741824"));
    const std::string said = complaint([&] { Engine::load(folder.path(), tiny_config("v41-tiny")); });
    EXPECT_TRUE(says(said, "does not hold the weights that its config.json describes")) << name;
    EXPECT_TRUE(says(said, name == "hidden_size"
                               ? "embed.weight: wanted shape [288, 1073741824] but got [288, 64]"
                               : "layers.0.attn.wq_b.weight: wanted shape [34359738368, 32] but got"));
  }
}

}  // namespace
}  // namespace reprise::testing
