#include "inputs/engram_vocabulary.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "../temporary_folder.h"

namespace reprise {
namespace {

using testing::complaint;
using testing::says;
using testing::TemporaryFolder;

ModelFacts tiny_engram_config() {
  ModelFacts facts;
  facts.vocab_size = 4;
  facts.engram.compressed_vocab_size = 3;
  return facts;
}

TEST(EngramVocabulary, ReadsAndChecksTheMap) {
  const TemporaryFolder folder;
  const auto config = tiny_engram_config();
  EXPECT_TRUE(
      says(complaint([&] { read_engram_vocabulary(folder.path(), config); }), "run `reprise prepare " + folder.path()));
  const auto with_file = [&](const std::string& text) {
    folder.write("engram_vocabulary.json", text);
    return complaint([&] { read_engram_vocabulary(folder.path(), config); });
  };
  EXPECT_EQ(with_file(R"({"vocab_size": 4, "compressed_vocab_size": 3, "map": [0, 1, 0, 2]})"), "");
  EXPECT_EQ(read_engram_vocabulary(folder.path(), config), (std::vector<int32_t>{0, 1, 0, 2}));
  EXPECT_TRUE(says(with_file(R"({"vocab_size": 4, "compressed_vocab_size": 3, "map": [0, 1, 2]})"),
                   "vocab_size = 4 token ids but got 3"));
  EXPECT_TRUE(
      says(with_file(R"({"vocab_size": 4, "compressed_vocab_size": 3, "map": [0, 1, 3, 0]})"), "token 2 wanted"));
  EXPECT_TRUE(
      says(with_file(R"({"vocab_size": 4, "compressed_vocab_size": 3, "map": [0, 1, -1, 2]})"), "token 2 wanted"));
  EXPECT_TRUE(says(with_file(R"({"vocab_size": 4, "compressed_vocab_size": 3, "map": [0, 1, 1, 0]})"),
                   "distinct compressed ids but got 2"));
  EXPECT_TRUE(says(with_file(R"({"vocab_size": 5, "compressed_vocab_size": 3, "map": [0, 1, 0, 2]})"),
                   "vocab_size = 4 but got 5"));
  EXPECT_TRUE(says(with_file(R"({"vocab_size": 4, "compressed_vocab_size": 3})"), "wanted a list \"map\""));
  EXPECT_TRUE(
      says(complaint([&] { check_engram_vocabulary({0, 1, -1, 0}, config, "[mine] "); }), "[mine] token 2 wanted"));
}

}  // namespace
}  // namespace reprise
