// Rows that an earlier index source published for the last KV source follow the kept rows.
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "../temporary_folder.h"
#include "engine_harness.h"
#include "reprise/error.h"

namespace reprise::testing {
namespace {

// v41-tiny with its candidates chosen at layer 2, so that the last KV source, layer 5, reads candidates of an earlier
// layer.
TEST(EngineRowBuffers, CandidatesOfAnEarlierLayerFollowTheKeptRows) {
  const std::string source = data_path("v41-tiny");
  const TemporaryFolder folder;
  std::filesystem::create_symlink(source + "/model.safetensors", folder.path() + "/model.safetensors");
  std::string config = read_text(source + "/config.json");
  const std::string field = "\"candidate_source_layer_id\": ";
  ASSERT_EQ(config.at(config.find(field) + field.size()), '5');
  config[config.find(field) + field.size()] = '2';
  folder.write("config.json", config);

  std::mt19937 random(5);
  std::vector<Request> requests;
  for (const int64_t length : {30, 57, 90}) {
    std::vector<int32_t> prompt(static_cast<size_t>(length));
    for (auto& id : prompt) id = std::uniform_int_distribution<int32_t>(3, 287)(random);
    requests.push_back(greedy_request(prompt, 4));
  }
  EngineConfig engine_config = tiny_config("v41-tiny");
  engine_config.replay = ReplayMode::kOff;
  const auto off = run(*Engine::load(folder.path(), engine_config), requests);
  for (const std::vector<int64_t>& buckets : {std::vector<int64_t>{}, {8, 128}}) {
    engine_config.graph_buckets = buckets;
    for (const int64_t budget : {64, 2048}) {
      engine_config.max_num_batched_tokens = std::max<int64_t>(budget, 128);
      engine_config.replay = ReplayMode::kExact;
      const auto exact = run(*Engine::load(folder.path(), engine_config), requests);
      for (size_t i = 0; i < requests.size(); ++i)
        EXPECT_TRUE(exact[i] == off[i]) << "request " << i << ", budget " << budget;
    }
    // Bounded is the same alone and in a batch.
    engine_config.replay = ReplayMode::kBounded;
    const auto together = run(*Engine::load(folder.path(), engine_config), requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto alone = run(*Engine::load(folder.path(), engine_config), {requests[i]});
      EXPECT_TRUE(alone.front() == together[i]) << "request " << i;
    }
  }
}

}  // namespace
}  // namespace reprise::testing
