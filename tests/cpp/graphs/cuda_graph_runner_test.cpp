// Graphs on a GPU: what a replay computes is what the operators compute.
#include <ATen/Context.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "graphs/fixed_rows.h"
#include "graphs/graph_runner.h"

namespace reprise {
namespace {

class CudaGraphRunnerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::globalContext().hasCUDA()) GTEST_SKIP() << "no GPU";
  }

  c10::InferenceMode inference_;
  at::TensorOptions options_ = at::TensorOptions().dtype(at::kFloat).device(at::kCUDA);
};

TEST_F(CudaGraphRunnerTest, ReplaysOnWhatTheBuffersHold) {
  const at::Tensor weight = at::randn({64, 64}, options_);
  const at::Tensor input = at::zeros({8, 64}, options_);
  const auto work = [&](const at::Tensor& x) { return x.matmul(weight).relu().add(x); };
  const auto runner = make_graph_runner(at::kCUDA, [&] { return GraphRunner::Outputs{work(input)}; });
  const void* place = nullptr;
  for (int round = 0; round < 3; ++round) {
    const at::Tensor x = at::randn({8, 64}, options_);
    input.copy_(x);
    const auto& outputs = runner->run();
    EXPECT_TRUE(outputs.at(0).cpu().allclose(work(x).cpu(), 1e-5, 1e-5)) << round;
    EXPECT_TRUE(place == nullptr || place == outputs[0].const_data_ptr());
    place = outputs[0].const_data_ptr();
  }
}

// Work that accumulates runs once when the runner is made, to warm up (a capture runs nothing), and once per replay.
TEST_F(CudaGraphRunnerTest, WorkInPlaceRunsOncePerReplay) {
  const at::Tensor sum = at::zeros({4}, options_);
  const auto runner = make_graph_runner(at::kCUDA, [&] { return GraphRunner::Outputs{sum.add_(1)}; });
  const float start = sum.cpu()[0].item<float>();
  EXPECT_EQ(start, 1);
  for (int i = 0; i < 3; ++i) runner->run();
  EXPECT_TRUE(sum.cpu().equal(at::full({4}, start + 3)));
}

TEST_F(CudaGraphRunnerTest, AFailedCaptureLeavesTheDeviceUsable) {
  int calls = 0;
  EXPECT_THROW(make_graph_runner(at::kCUDA,
                                 [&]() -> GraphRunner::Outputs {
                                   if (++calls == 2) throw std::runtime_error("in the capture");
                                   return {at::zeros({2}, options_)};
                                 }),
               std::runtime_error);
  EXPECT_TRUE(at::full({2}, 3, options_).cpu().equal(at::full({2}, 3.0f)));
}

TEST_F(CudaGraphRunnerTest, FixedRowsTakeRowsFromTheHost) {
  const at::Tensor fixed = at::zeros({4}, options_.dtype(at::kLong));
  set_first_rows(fixed, at::full({3}, 7, at::kLong));
  pad_rows(fixed, 2, -1);
  const at::Tensor want = at::full({4}, -1, at::kLong);
  want.narrow(0, 0, 2).fill_(7);
  EXPECT_TRUE(fixed.cpu().equal(want));
}

}  // namespace
}  // namespace reprise
