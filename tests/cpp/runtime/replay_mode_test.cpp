// When a configuration cannot replay it is off, with a reason.
#include "runtime/replay_mode.h"

#include <gtest/gtest.h>

namespace reprise {
namespace {

// Ten layers, the last KV source is layer 5.
ModelConfig decoder() {
  ModelConfig config;
  config.num_hidden_layers = 10;
  config.compress_ratios.assign(10, 1);
  config.kv_source_layer_ids = {2, 5};
  return config;
}

TEST(ReplayModeTest, RunsWhatWasAskedFor) {
  for (const ReplayMode mode : {ReplayMode::kOff, ReplayMode::kBounded, ReplayMode::kExact, ReplayMode::kStep}) {
    const ReplayDecision decision = decide_replay(mode, make_model_facts(decoder()));
    EXPECT_EQ(decision.mode, mode);
    EXPECT_EQ(decision.reason, "");
  }
}

TEST(ReplayModeTest, OffWithoutKvSources) {
  ModelConfig config = decoder();
  config.kv_source_layer_ids = {};
  const ReplayDecision decision = decide_replay(ReplayMode::kBounded, make_model_facts(config));
  EXPECT_EQ(decision.mode, ReplayMode::kOff);
  EXPECT_EQ(decision.reason, "the model declares no KV sources");
  EXPECT_EQ(decide_replay(ReplayMode::kOff, make_model_facts(config)).reason, "") << "off is what was asked for";
}

TEST(ReplayModeTest, OffWhenNoLayerFollowsTheLastSource) {
  ModelConfig config = decoder();
  config.kv_source_layer_ids = {2, 9};
  EXPECT_EQ(decide_replay(ReplayMode::kExact, make_model_facts(config)).reason, "no layer follows the last KV source");
}

TEST(ReplayModeTest, OffWhenAReplayLayerCarriesAnEngram) {
  ModelConfig config = decoder();
  config.engram_layer_ids = {1, 7};
  EXPECT_EQ(decide_replay(ReplayMode::kExact, make_model_facts(config)).reason,
            "layer 7 follows the last KV source and carries an Engram");
  config.engram_layer_ids = {1, 5};
  EXPECT_EQ(decide_replay(ReplayMode::kExact, make_model_facts(config)).mode, ReplayMode::kExact);
}

TEST(ReplayModeTest, LastRowNeedsLayersWithoutKv) {
  const ReplayDecision decision = decide_replay(ReplayMode::kLastRow, make_model_facts(decoder()));
  EXPECT_EQ(decision.mode, ReplayMode::kOff);
  EXPECT_NE(decision.reason.find("own window KV"), std::string::npos);
}

}  // namespace
}  // namespace reprise
