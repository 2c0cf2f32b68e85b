#include "inputs/engram_vocabulary.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/json_file.h"
#include "reprise/error.h"

namespace reprise {

void check_engram_vocabulary(const std::vector<int32_t>& vocabulary, const ModelFacts& model,
                             const std::string& origin) {
  REPRISE_REQUIRE(static_cast<int64_t>(vocabulary.size()) == model.vocab_size, origin,
                  "wanted one compressed id for each of vocab_size = ", model.vocab_size, " token ids but got ",
                  vocabulary.size());
  const auto distinct = static_cast<int64_t>(std::set<int32_t>(vocabulary.begin(), vocabulary.end()).size());
  REPRISE_REQUIRE(distinct == model.engram.compressed_vocab_size, origin,
                  "wanted engram_compressed_vocab_size = ", model.engram.compressed_vocab_size,
                  " distinct compressed ids but got ", distinct, "; is it the checkpoint's own tokenizer?");
  for (size_t token = 0; token < vocabulary.size(); ++token) {
    const int32_t id = vocabulary[token];
    REPRISE_REQUIRE(id >= 0 && id < model.engram.compressed_vocab_size, origin, "token ", token,
                    " wanted a compressed id in [0, engram_compressed_vocab_size = ",
                    model.engram.compressed_vocab_size, ") but got ", id);
  }
}

std::vector<int32_t> read_engram_vocabulary(const std::string& checkpoint_dir, const ModelFacts& model) {
  const std::string path = (std::filesystem::path(checkpoint_dir) / kEngramVocabularyFile).string();
  REPRISE_REQUIRE(std::filesystem::exists(path), "[load] wanted ", path,
                  " (this checkpoint has Engram layers) but there is none; run `reprise prepare ", checkpoint_dir,
                  "` to make it");
  const nlohmann::json object = read_json_file(path);
  const auto map = object.find("map");
  REPRISE_REQUIRE(map != object.end() && map->is_array(), "[", path, "] wanted a list \"map\" but there is none");
  std::vector<int32_t> vocabulary;
  vocabulary.reserve(map->size());
  for (const auto& id : *map) {
    REPRISE_REQUIRE(id.is_number_unsigned() && id.get<uint64_t>() <= INT32_MAX, "[", path, "] token ",
                    vocabulary.size(), " wanted a compressed id of at least 0 but got ", id.dump());
    vocabulary.push_back(id.get<int32_t>());
  }
  check_engram_vocabulary(vocabulary, model, concat("[", path, "] "));
  for (const auto& [field, size] : {std::pair("vocab_size", model.vocab_size),
                                    std::pair("compressed_vocab_size", model.engram.compressed_vocab_size)}) {
    const auto stated = object.find(field);
    REPRISE_REQUIRE(stated != object.end() && *stated == size, "[", path, "] wanted ", field, " = ", size, " but got ",
                    stated == object.end() ? "none" : stated->dump());
  }
  return vocabulary;
}

}  // namespace reprise
