#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reprise/model_facts.h"

namespace reprise {

// The file beside a checkpoint that maps token ids to Engram's compressed vocabulary: {"vocab_size",
// "compressed_vocab_size", "map"}.
inline constexpr const char* kEngramVocabularyFile = "engram_vocabulary.json";

// Reads CHECKPOINT/engram_vocabulary.json: token id -> compressed id, [vocab_size]. Throws std::invalid_argument when
// it is missing (saying how to make it) or does not fit the model.
std::vector<int32_t> read_engram_vocabulary(const std::string& checkpoint_dir, const ModelFacts& model);

// Checks a map that was handed over; `origin` begins the error message ("[where] ").
void check_engram_vocabulary(const std::vector<int32_t>& vocabulary, const ModelFacts& model,
                             const std::string& origin);

}  // namespace reprise
