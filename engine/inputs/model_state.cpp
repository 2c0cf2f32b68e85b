#include "reprise/model_state.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <optional>

#include "inputs/engram_rows.h"
#include "inputs/row_sets.h"
#include "memory/reused_tensor.h"
#include "reprise/error.h"

namespace reprise {

class ModelState::Impl {
 public:
  Impl(const ModelConfig& config, int64_t max_num_seqs, int64_t max_model_len, int64_t page_size,
       std::vector<int32_t> vocabulary)
      : config_(config), max_num_seqs_(max_num_seqs), page_size_(page_size), row_sets_(config, page_size) {
    const int64_t entries = (max_model_len + page_size - 1) / page_size;
    for (auto& table : block_tables_) table = at::zeros({max_num_seqs, entries}, at::kInt);
    if (!config.engram_layer_ids.empty()) engram_.emplace(config, std::move(vocabulary));
  }

  void prepare(const StepPlan& plan, const std::vector<bool>& hidden_rows, StepInputs& inputs) {
    check(plan, hidden_rows);
    for (const auto& update : plan.block_table_updates) {
      at::Tensor& table = block_tables_[static_cast<size_t>(update.group)];
      table.mutable_data_ptr<int32_t>()[update.state_slot * table.size(1) + update.index] = update.page;
    }
    reuse_tensor(inputs.token_ids, {plan.num_rows}, at::kLong);
    int64_t* ids = inputs.token_ids.mutable_data_ptr<int64_t>();
    for (const auto& sequence : plan.sequences) {
      ids = std::copy_n(sequence.tokens.begin() + sequence.start, sequence.num_rows, ids);
    }
    if (engram_) {
      engram_->fill(plan, inputs.engram_rows);
    } else {
      inputs.engram_rows.clear();
    }
    row_sets_.build(plan, block_tables_[0], block_tables_[1], inputs);
    row_sets_.choose_outputs(plan, hidden_rows, inputs);
  }

  const ModelConfig& config() const { return config_; }
  int64_t page_size() const { return page_size_; }

 private:
  void check(const StepPlan& plan, const std::vector<bool>& hidden_rows) const {
    const int64_t entries = block_tables_[0].size(1);
    REPRISE_REQUIRE(hidden_rows.empty() || hidden_rows.size() == plan.sequences.size(),
                    "[prepare] wanted a flag for each of ", plan.sequences.size(), " sequences but got ",
                    hidden_rows.size());
    int64_t rows = 0;
    for (const auto& s : plan.sequences) {
      REPRISE_REQUIRE(s.state_slot >= 0 && s.state_slot < max_num_seqs_, "[prepare] wanted a state slot below ",
                      max_num_seqs_, " but got ", s.state_slot, " for request ", s.id);
      const auto length = static_cast<int64_t>(s.tokens.size());
      REPRISE_REQUIRE(s.start >= 0 && s.num_rows > 0 && s.start <= length - s.num_rows,
                      "[prepare] wanted rows within the ", length, " tokens of request ", s.id, " but got ", s.num_rows,
                      " rows from ", s.start);
      REPRISE_REQUIRE(s.start + s.num_rows <= entries * page_size_, "[prepare] wanted at most ", entries * page_size_,
                      " tokens per request but request ", s.id, " runs to ", s.start + s.num_rows);
      REPRISE_REQUIRE(!s.row_plan || static_cast<int64_t>(s.row_plan->layers.size()) == config_.num_hidden_layers,
                      "[prepare] wanted a row plan of ", config_.num_hidden_layers, " layers for request ", s.id);
      check_outputs(s, !hidden_rows.empty() && hidden_rows[static_cast<size_t>(&s - plan.sequences.data())]);
      // From the Engram's lookback on.
      const int64_t first = std::max<int64_t>(s.start - config_.engram_max_ngram_size, 0);
      for (const int32_t id :
           s.tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(s.start + s.num_rows - first))) {
        REPRISE_REQUIRE(id >= 0 && id < config_.vocab_size, "[prepare] wanted token ids below ", config_.vocab_size,
                        " but got ", id);
      }
      rows += s.num_rows;
    }
    REPRISE_REQUIRE(rows == plan.num_rows, "[prepare] wanted num_rows to be the sequences' ", rows, " rows but got ",
                    plan.num_rows);
    for (const auto& update : plan.block_table_updates) {
      REPRISE_REQUIRE(update.state_slot >= 0 && update.state_slot < max_num_seqs_ && update.index >= 0 &&
                          update.index < entries && update.page >= 0,
                      "[prepare] wanted a page and a block table entry within ", max_num_seqs_, " x ", entries,
                      " but got (", update.state_slot, ", ", update.index, ")");
    }
  }

  // Rows whose output is read are among those that the last layer computes.
  void check_outputs(const ScheduledSequence& s, bool hidden) const {
    REPRISE_REQUIRE(s.first_logits_row >= 0 && s.first_logits_row <= s.num_rows,
                    "[prepare] wanted first_logits_row from 0 to ", s.num_rows, " but got ", s.first_logits_row,
                    " for request ", s.id);
    const int64_t end = s.start + s.num_rows;
    int64_t first = s.start;
    if (s.row_plan) {
      for (const LayerRows& rows : s.row_plan->layers) first = std::clamp(rows.first_computed, first, end);
    }
    const int64_t wanted = hidden ? s.start : s.start + s.first_logits_row;
    REPRISE_REQUIRE(wanted == end || wanted >= first, "[prepare] wanted a row plan that computes row ", wanted,
                    " of request ", s.id, ", whose output is read, but its last layer computes rows from ", first);
  }

  ModelConfig config_;
  int64_t max_num_seqs_;
  int64_t page_size_;
  std::array<at::Tensor, kNumCacheGroups> block_tables_;  // [max_num_seqs, entries] int32
  std::optional<EngramRows> engram_;
  RowSets row_sets_;
};

ModelState::ModelState(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ModelState::~ModelState() = default;
ModelState::ModelState(ModelState&&) noexcept = default;
ModelState& ModelState::operator=(ModelState&&) noexcept = default;

StepInputs ModelState::prepare(const StepPlan& plan, const std::vector<bool>& hidden_rows) {
  StepInputs inputs;
  prepare(plan, hidden_rows, inputs);
  return inputs;
}
void ModelState::prepare(const StepPlan& plan, const std::vector<bool>& hidden_rows, StepInputs& inputs) {
  impl_->prepare(plan, hidden_rows, inputs);
}
const ModelConfig& ModelState::config() const { return impl_->config(); }
int64_t ModelState::page_size() const { return impl_->page_size(); }

ModelStateBuilder& ModelStateBuilder::max_num_seqs(int64_t value) {
  max_num_seqs_ = value;
  return *this;
}

ModelStateBuilder& ModelStateBuilder::max_model_len(int64_t value) {
  max_model_len_ = value;
  return *this;
}

ModelStateBuilder& ModelStateBuilder::page_size(int64_t value) {
  page_size_ = value;
  return *this;
}

ModelStateBuilder& ModelStateBuilder::engram_vocabulary(std::vector<int32_t> map) {
  engram_vocabulary_ = std::move(map);
  return *this;
}

ModelState ModelStateBuilder::build() const {
  const int64_t length = max_model_len_ > 0 ? max_model_len_ : config_.max_position_embeddings;
  REPRISE_REQUIRE(max_num_seqs_ > 0, "[ModelStateBuilder] wanted max_num_seqs of at least 1 but got ", max_num_seqs_);
  REPRISE_REQUIRE(length > 0, "[ModelStateBuilder] wanted max_model_len of at least 1 but got ", length);
  REPRISE_REQUIRE(page_size_ > 0, "[ModelStateBuilder] wanted page_size of at least 1 but got ", page_size_);
  for (const int64_t source : config_.kv_source_layer_ids) {
    const int64_t ratio = config_.compress_ratios.at(static_cast<size_t>(source));
    REPRISE_REQUIRE(page_size_ % ratio == 0,
                    "[ModelStateBuilder] wanted a page_size that is a multiple of compress ratio ", ratio, " but got ",
                    page_size_);
  }
  return ModelState(std::make_unique<ModelState::Impl>(config_, max_num_seqs_, length, page_size_, engram_vocabulary_));
}

}  // namespace reprise
