#include "runtime/engram_rows.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "runtime/engram_vocabulary.h"

namespace reprise {

EngramRows::EngramRows(const ModelConfig& config, std::vector<int32_t> vocabulary)
    : vocabulary_(std::move(vocabulary)) {
  check_engram_vocabulary(vocabulary_, config, "[engram_vocabulary] ");
  hashes_ = make_engram_hashes(config, vocabulary_[static_cast<size_t>(config.engram_pad_token_id)]);
}

std::vector<at::Tensor> EngramRows::rows(const StepPlan& plan) const {
  std::vector<at::Tensor> result;
  for (const auto& hash : hashes_) result.push_back(at::empty({plan.num_rows, hash.num_tables()}, at::kLong));
  std::vector<int32_t> compressed;
  int64_t row = 0;
  for (const auto& sequence : plan.sequences) {
    const int64_t lookback = std::min(sequence.start, hashes_.front().max_ngram_size() - 1);
    const auto tokens = sequence.tokens.subspan(static_cast<size_t>(sequence.start - lookback),
                                                static_cast<size_t>(lookback + sequence.num_rows));
    compressed.resize(tokens.size());
    std::transform(tokens.begin(), tokens.end(), compressed.begin(),
                   [this](int32_t id) { return vocabulary_[static_cast<size_t>(id)]; });
    for (size_t i = 0; i < hashes_.size(); ++i) {
      hashes_[i].hash_rows(compressed, lookback, sequence.num_rows,
                           result[i].mutable_data_ptr<int64_t>() + row * hashes_[i].num_tables());
    }
    row += sequence.num_rows;
  }
  return result;
}

}  // namespace reprise
