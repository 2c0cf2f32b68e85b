// A decode step that runs in graphs allocates nothing, from the scheduler's plan to the logits and the commit.
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "../backends/product_keys.h"
#include "engine_harness.h"
#include "runtime/engine_checks.h"
#include "runtime/model_runner.h"
#include "scheduler/scheduler.h"

namespace reprise::testing {
namespace {

constexpr int64_t kMostRequests = 5;

struct Setting {
  const char* checkpoint;
  Dtype dtype;
};

class GraphAllocationTest : public ::testing::TestWithParam<Setting> {
 protected:
  GraphAllocationTest()
      : decoder_(read_decoder(data_path(GetParam().checkpoint))),
        model_(decoder_->facts()),
        engine_(check_engine_config(config(), model_)),
        runner_(data_path(GetParam().checkpoint), *decoder_, engine_),
        scheduler_({.model = model_,
                    .max_num_seqs = engine_.max_num_seqs,
                    .max_num_batched_tokens = engine_.max_num_batched_tokens,
                    .max_model_len = runner_.cache_sizes().max_model_len,
                    .page_size = engine_.page_size,
                    .num_pages = runner_.cache_sizes().num_pages}) {
    results_.reserve(kMostRequests);
  }

  static EngineConfig config() {
    EngineConfig config = tiny_config(GetParam().checkpoint);
    config.dtype = GetParam().dtype;
    config.graph_buckets = {1, 2, 4, 8};
    config.poison_cache = false;  // it fills pages as they change hands
    config.max_model_len = 256;
    return config;
  }

  void add(int64_t prompt_length) {
    std::vector<int32_t> prompt(static_cast<size_t>(prompt_length), 7);
    scheduler_.add({.id = next_id_++, .prompt = std::move(prompt), .max_tokens = 200});
  }

  // One step with greedy tokens; the last request of the batch ends with it if told so.
  void step(bool end_last = false) {
    const StepPlan& plan = scheduler_.plan();
    const StepInputs& inputs = runner_.prepare(plan, no_hidden_rows_);
    const StepOutputs outputs = runner_.run(inputs);
    results_.clear();
    int64_t row = 0;
    for (const auto& sequence : plan.sequences) {
      if (!sequence.samples) continue;
      const float* logits = outputs.logits.const_data_ptr<float>() + row++ * model_.vocab_size;
      const float* best = std::max_element(logits, logits + model_.vocab_size);
      ASSERT_TRUE(std::isfinite(*best));
      results_.push_back({.id = sequence.id, .token = static_cast<int32_t>(best - logits)});
    }
    num_rows_ = plan.num_rows;
    if (end_last) results_.back().finished = true;
    scheduler_.commit(results_);
  }

  const c10::InferenceMode inference_;
  std::unique_ptr<Decoder> decoder_;
  const ModelFacts& model_;
  EngineConfig engine_;
  ModelRunner runner_;
  Scheduler scheduler_;
  std::vector<SequenceResult> results_;
  const std::vector<bool> no_hidden_rows_;
  RequestId next_id_ = 0;
  int64_t num_rows_ = 0;  // of the last step
};

TEST_P(GraphAllocationTest, ADecodeStepAllocatesNothing) {
  at::set_num_threads(1);  // which thread meets a shape first, and makes its kernel and scratch memory, is chance
  exempt_product_keys<float>(at::kFloat);
  exempt_product_keys<c10::BFloat16>(at::kBFloat16);
  // The first time makes the graphs, and the scratch memory and product kernels of every number of rows.
  for (int time = 0; time < 2; ++time) {
    for (int64_t i = 0; i < kMostRequests; ++i) add(9 + 4 * i);
    const int64_t before_prefill = num_allocations();
    step();
    EXPECT_GT(num_allocations(), before_prefill) << "the count counts";
    for (int64_t requests = kMostRequests; requests > 0; --requests) {
      for (int i = 0; i < 12; ++i) {  // over pages, groups and the window's end
        const int64_t before = num_allocations();
        step();
        ASSERT_EQ(num_rows_, requests);
        if (time == 0) continue;
        EXPECT_EQ(num_allocations() - before, 0) << requests << " requests, step " << i;
      }
      step(/*end_last=*/true);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, GraphAllocationTest,
                         ::testing::Values(Setting{"v41-tiny", Dtype::kFloat32},
                                           Setting{"v41-tiny-engram", Dtype::kFloat32},
                                           Setting{"v41-tiny-quant", Dtype::kBFloat16}));

}  // namespace
}  // namespace reprise::testing
