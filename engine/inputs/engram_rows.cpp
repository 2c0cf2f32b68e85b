#include "inputs/engram_rows.h"

#include <algorithm>

#include "inputs/engram_vocabulary.h"

namespace reprise {

EngramRows::EngramRows(const ModelFacts& model, std::vector<int32_t> vocabulary) : vocabulary_(std::move(vocabulary)) {
  check_engram_vocabulary(vocabulary_, model, "[engram_vocabulary] ");
  hashes_ = make_engram_hashes(model.engram, vocabulary_[static_cast<size_t>(model.engram.pad_token_id)]);
}

void EngramRows::fill(const StepPlan& plan, std::vector<std::vector<int64_t>>& rows) {
  rows.resize(hashes_.size());
  for (size_t i = 0; i < hashes_.size(); ++i)
    rows[i].resize(static_cast<size_t>(plan.num_rows * hashes_[i].num_tables()));
  int64_t row = 0;
  for (const auto& sequence : plan.sequences) {
    const int64_t lookback = std::min(sequence.start, hashes_.front().max_ngram_size() - 1);
    const auto tokens = sequence.tokens.subspan(static_cast<size_t>(sequence.start - lookback),
                                                static_cast<size_t>(lookback + sequence.num_rows));
    compressed_.resize(tokens.size());
    std::transform(tokens.begin(), tokens.end(), compressed_.begin(),
                   [this](int32_t id) { return vocabulary_[static_cast<size_t>(id)]; });
    for (size_t i = 0; i < hashes_.size(); ++i) {
      hashes_[i].hash_rows(compressed_, lookback, sequence.num_rows, rows[i].data() + row * hashes_[i].num_tables());
    }
    row += sequence.num_rows;
  }
}

}  // namespace reprise
