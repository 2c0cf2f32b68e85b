#include "runtime/model_runner.h"

#include <algorithm>

#include "checkpoint/checkpoint.h"

namespace reprise {

namespace {

std::unique_ptr<Model> load_model(const std::string& checkpoint_dir, const Decoder& decoder, const EngineConfig& engine,
                                  at::ScalarType dtype, std::string& notice) {
  // A weight is packed from memory that the next one takes again: left to malloc, the gaps grow to a third of the
  // weights.
  TensorCache staging;
  const TensorSourceScope scope(staging);
  Checkpoint checkpoint(checkpoint_dir, engine.on_load_progress);
  for (const auto& said : decoder.facts().notices) notice += said + "; ";
  notice += checkpoint.notice();
  if (notice.ends_with("; ")) notice.resize(notice.size() - 2);
  auto model = decoder.make({.dtype = dtype,
                             .cache_rounding = engine.kv_cache_dtype == CacheDtype::kAuto,
                             // A graph runs all rows of its bucket.
                             .max_rows = std::max(max_step_rows(decoder.facts(), engine),
                                                  engine.graph_buckets.empty() ? 0 : engine.graph_buckets.back())},
                            checkpoint);
  checkpoint.finish();
  return model;
}

ModelState build_state(const ModelFacts& model, const EngineConfig& engine, const CacheSizes& sizes) {
  ModelStateBuilder builder(model);
  builder.max_num_seqs(engine.max_num_seqs).max_model_len(sizes.max_model_len).page_size(engine.page_size);
  return builder.engram_vocabulary(engine.engram_vocabulary).build();
}

std::unique_ptr<GraphedWalk> make_graphs(const EngineConfig& engine, Model& model) {
  if (engine.graph_buckets.empty()) return nullptr;
  return std::make_unique<GraphedWalk>(
      model, ReplayDispatcher::cut_layer(model.facts()),
      GraphOptions{
          .buckets = engine.graph_buckets, .max_num_seqs = engine.max_num_seqs, .poison = engine.poison_cache});
}

// Whether a page comes with the rows of a prefix-cache hit.
bool is_adopted(const StepPlan& plan, const BlockTableUpdate& update, const ModelFacts& model, int64_t page_size) {
  if (!model.groups[static_cast<size_t>(update.group)].cacheable) return false;
  return std::any_of(plan.sequences.begin(), plan.sequences.end(), [&](const ScheduledSequence& sequence) {
    return sequence.state_slot == update.state_slot && update.index * page_size < sequence.publish_from;
  });
}

}  // namespace

ModelRunner::ModelRunner(const std::string& checkpoint_dir, const Decoder& decoder, const EngineConfig& engine)
    : dtype_(resolve_dtype(decoder.facts(), engine)),
      model_(load_model(checkpoint_dir, decoder, engine, dtype_, load_notice_)),
      sizes_(choose_cache_sizes(model_->facts(), engine, dtype_)),
      cache_(model_->facts(), {.page_size = engine.page_size,
                               .num_pages = sizes_.num_pages,
                               .max_num_seqs = engine.max_num_seqs,
                               .dtype = dtype_,
                               .poison = engine.poison_cache}),
      state_(build_state(model_->facts(), engine, sizes_)),
      graphs_(make_graphs(engine, *model_)),
      dispatcher_(*model_, graphs_.get(), cache_) {}

const StepInputs& ModelRunner::prepare(const StepPlan& plan, const std::vector<bool>& hidden_rows) {
  if (cache_.poisons()) poison_new_pages(plan);
  state_.prepare(plan, hidden_rows, inputs_);
  return inputs_;
}

void ModelRunner::poison_new_pages(const StepPlan& plan) {
  for (const auto& update : plan.block_table_updates) {
    if (!is_adopted(plan, update, model_->facts(), cache_.page_size())) cache_.poison_page(update.group, update.page);
  }
}

StepOutputs ModelRunner::run(const StepInputs& inputs) {
  const TensorSourceScope scope(tensors_);
  return dispatcher_.forward(inputs);
}

}  // namespace reprise
