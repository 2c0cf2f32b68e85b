#include "reprise/model_state.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <optional>

#include "inputs/engram_rows.h"
#include "inputs/upload.h"
#include "reprise/error.h"
#include "scheduler/block_tables.h"
#include "scheduler/step_layout.h"

namespace reprise {

namespace {

// The tables' own memory, which contexts may keep: what a plan changes in them is there at once.
std::vector<at::Tensor> as_tensors(const std::shared_ptr<BlockTables>& tables) {
  std::vector<at::Tensor> tensors;
  for (size_t group = 0; group < tables->num_groups(); ++group) {
    tensors.push_back(at::from_blob(
        tables->table(group).data(), {tables->max_num_seqs(), tables->entries()}, [tables](void*) {}, at::kInt));
  }
  return tensors;
}

}  // namespace

class ModelState::Impl {
 public:
  Impl(const ModelFacts& facts, int64_t max_num_seqs, int64_t max_model_len, int64_t page_size,
       std::vector<int32_t> vocabulary)
      : facts_(facts),
        page_size_(page_size),
        tables_(std::make_shared<BlockTables>(facts.groups.size(), max_num_seqs,
                                              (max_model_len + page_size - 1) / page_size)),
        uploader_(facts, as_tensors(tables_)) {
    if (!facts.engram.layer_ids.empty()) engram_.emplace(facts, std::move(vocabulary));
  }

  void prepare(const StepPlan& plan, const std::vector<bool>& hidden_rows, StepInputs& inputs) {
    check(plan, hidden_rows);
    tables_->apply(plan.block_table_updates);
    lay_out(plan, facts_, *tables_, page_size_, hidden_rows, layout_);
    if (engram_) engram_->fill(plan, engram_rows_);
    uploader_.upload(layout_, engram_rows_, inputs);
  }

  const ModelFacts& facts() const { return facts_; }
  int64_t page_size() const { return page_size_; }

 private:
  void check(const StepPlan& plan, const std::vector<bool>& hidden_rows) const {
    const int64_t entries = tables_->entries();
    const int64_t max_num_seqs = tables_->max_num_seqs();
    REPRISE_REQUIRE(hidden_rows.empty() || hidden_rows.size() == plan.sequences.size(),
                    "[prepare] wanted a flag for each of ", plan.sequences.size(), " sequences but got ",
                    hidden_rows.size());
    int64_t rows = 0;
    for (const auto& s : plan.sequences) {
      REPRISE_REQUIRE(s.state_slot >= 0 && s.state_slot < max_num_seqs, "[prepare] wanted a state slot below ",
                      max_num_seqs, " but got ", s.state_slot, " for request ", s.id);
      const auto length = static_cast<int64_t>(s.tokens.size());
      REPRISE_REQUIRE(s.start >= 0 && s.num_rows > 0 && s.start <= length - s.num_rows,
                      "[prepare] wanted rows within the ", length, " tokens of request ", s.id, " but got ", s.num_rows,
                      " rows from ", s.start);
      REPRISE_REQUIRE(s.start + s.num_rows <= entries * page_size_, "[prepare] wanted at most ", entries * page_size_,
                      " tokens per request but request ", s.id, " runs to ", s.start + s.num_rows);
      REPRISE_REQUIRE(!s.row_plan || static_cast<int64_t>(s.row_plan->layers.size()) == facts_.num_layers(),
                      "[prepare] wanted a row plan of ", facts_.num_layers(), " layers for request ", s.id);
      check_outputs(s, !hidden_rows.empty() && hidden_rows[static_cast<size_t>(&s - plan.sequences.data())]);
      // From the Engram's lookback on.
      const int64_t first = std::max<int64_t>(s.start - facts_.engram.max_ngram_size, 0);
      for (const int32_t id :
           s.tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(s.start + s.num_rows - first))) {
        REPRISE_REQUIRE(id >= 0 && id < facts_.vocab_size, "[prepare] wanted token ids below ", facts_.vocab_size,
                        " but got ", id);
      }
      rows += s.num_rows;
    }
    REPRISE_REQUIRE(rows == plan.num_rows, "[prepare] wanted num_rows to be the sequences' ", rows, " rows but got ",
                    plan.num_rows);
    for (const auto& update : plan.block_table_updates) {
      REPRISE_REQUIRE(
          update.state_slot >= 0 && update.state_slot < max_num_seqs && update.index >= 0 && update.index < entries &&
              update.page >= 0 && update.group >= 0 && static_cast<size_t>(update.group) < tables_->num_groups(),
          "[prepare] wanted a page and a block table entry of ", tables_->num_groups(), " groups within ", max_num_seqs,
          " x ", entries, " but got (", update.group, ", ", update.state_slot, ", ", update.index, ")");
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

  ModelFacts facts_;
  int64_t page_size_;
  std::shared_ptr<BlockTables> tables_;
  std::optional<EngramRows> engram_;
  Uploader uploader_;
  StepLayout layout_;                              // of the last step; its memory serves the next one
  std::vector<std::vector<int64_t>> engram_rows_;  // likewise
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
const ModelFacts& ModelState::facts() const { return impl_->facts(); }
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
  const int64_t length = max_model_len_ > 0 ? max_model_len_ : facts_.max_position_embeddings;
  REPRISE_REQUIRE(max_num_seqs_ > 0, "[ModelStateBuilder] wanted max_num_seqs of at least 1 but got ", max_num_seqs_);
  REPRISE_REQUIRE(length > 0, "[ModelStateBuilder] wanted max_model_len of at least 1 but got ", length);
  REPRISE_REQUIRE(page_size_ > 0, "[ModelStateBuilder] wanted page_size of at least 1 but got ", page_size_);
  for (const CellFacts& cells : facts_.cells) {
    REPRISE_REQUIRE(page_size_ % cells.ratio == 0,
                    "[ModelStateBuilder] wanted a page_size that is a multiple of compress ratio ", cells.ratio,
                    " but got ", page_size_);
  }
  return ModelState(std::make_unique<ModelState::Impl>(facts_, max_num_seqs_, length, page_size_, engram_vocabulary_));
}

}  // namespace reprise
