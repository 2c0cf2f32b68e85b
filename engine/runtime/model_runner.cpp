#include "runtime/model_runner.h"

#include "runtime/checkpoint.h"

namespace reprise {

namespace {

std::unique_ptr<Model> load_model(const std::string& checkpoint_dir, const ModelConfig& model, const EngineConfig& engine,
                                  at::ScalarType dtype, std::string& notice) {
  Checkpoint checkpoint(checkpoint_dir, engine.on_load_progress);
  notice = checkpoint.notice();
  return make_model(model,
                    {.dtype = dtype,
                     .cache_rounding = engine.kv_cache_dtype == CacheDtype::kAuto,
                     .max_rows = engine.max_num_batched_tokens},
                    checkpoint);
}

ModelState build_state(const ModelConfig& model, const EngineConfig& engine, const CacheSizes& sizes) {
  ModelStateBuilder builder(model);
  builder.max_num_seqs(engine.max_num_seqs).max_model_len(sizes.max_model_len).page_size(engine.page_size);
  return builder.engram_vocabulary(engine.engram_vocabulary).build();
}

at::ScalarType scalar_type(Dtype dtype) { return dtype == Dtype::kFloat32 ? at::kFloat : at::kBFloat16; }

}  // namespace

ModelRunner::ModelRunner(const std::string& checkpoint_dir, const ModelConfig& model, const EngineConfig& engine)
    : dtype_(scalar_type(engine.dtype == Dtype::kAuto ? model.dtype : engine.dtype)),
      model_(load_model(checkpoint_dir, model, engine, dtype_, load_notice_)),
      sizes_(choose_cache_sizes(model, engine, dtype_)),
      cache_(model, {.page_size = engine.page_size,
                     .num_window_pages = sizes_.num_window_pages,
                     .num_compressed_pages = sizes_.num_compressed_pages,
                     .max_num_seqs = engine.max_num_seqs,
                     .dtype = dtype_,
                     .poison = engine.poison_cache}),
      state_(build_state(model, engine, sizes_)),
      dispatcher_(model, *model_, cache_) {}

StepInputs ModelRunner::prepare(const StepPlan& plan, const std::vector<bool>& hidden_rows) {
  for (const auto& update : plan.block_table_updates) {
    if (update.group == CacheGroup::kWindow) cache_.poison_window_page(update.page);
  }
  return state_.prepare(plan, hidden_rows);
}

}  // namespace reprise
