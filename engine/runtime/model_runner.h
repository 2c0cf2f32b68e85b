#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "context/kv_cache.h"
#include "graphs/graphed_walk.h"
#include "graphs/replay_dispatcher.h"
#include "memory/tensor_cache.h"
#include "models/family.h"
#include "models/model.h"
#include "reprise/config.h"
#include "reprise/model_state.h"
#include "reprise/step_plan.h"
#include "runtime/cache_sizes.h"

namespace reprise {

// A loaded model with its caches: takes a step's plan, gives its logits.
class ModelRunner {
 public:
  // `engine` is checked and holds the Engram vocabulary where the model needs one.
  ModelRunner(const std::string& checkpoint_dir, const Decoder& decoder, const EngineConfig& engine);

  // Valid until the next call.
  const StepInputs& prepare(const StepPlan& plan, const std::vector<bool>& hidden_rows);
  // Valid until the next run.
  StepOutputs run(const StepInputs& inputs);

  const CacheSizes& cache_sizes() const { return sizes_; }
  int64_t weight_bytes() const { return model_->weight_bytes(); }
  // What loading passed over; empty when nothing was.
  const std::string& load_notice() const { return load_notice_; }
  at::ScalarType dtype() const { return dtype_; }

 private:
  void poison_new_pages(const StepPlan& plan);

  TensorCache tensors_;  // of the steps
  at::ScalarType dtype_;
  std::string load_notice_;
  std::unique_ptr<Model> model_;
  CacheSizes sizes_;
  KvCache cache_;
  ModelState state_;
  StepInputs inputs_;
  std::unique_ptr<GraphedWalk> graphs_;  // null without graph buckets
  ReplayDispatcher dispatcher_;
};

}  // namespace reprise
