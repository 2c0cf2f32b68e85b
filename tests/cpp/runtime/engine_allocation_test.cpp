// A decode step takes the same memory wherever in its context a request stands.
#include <gtest/gtest.h>

#include "../backends/product_keys.h"
#include "engine_harness.h"

namespace reprise::testing {
namespace {

// Bytes of the decode step of a request with `length` tokens before it.
int64_t decode_step_bytes(Engine& engine, int64_t length) {
  Request request;
  for (int64_t i = 0; i < length - 2; ++i) request.prompt_token_ids.push_back(static_cast<int32_t>(3 + i * 31 % 280));
  request.sampling.max_tokens = 8;
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  const RequestId id = engine.submit(request);
  for (size_t tokens = 0; tokens < 2;) {
    for (const auto& output : engine.step()) tokens += output.new_token_ids.size();
  }
  const int64_t before = allocated_bytes();
  engine.step();
  const int64_t taken = allocated_bytes() - before;
  engine.abort(id);
  engine.step();
  return taken;
}

TEST(EngineAllocationTest, ADecodeStepTakesNoMemoryThatGrowsWithTheContext) {
  exempt_product_keys<float>(at::kFloat);
  exempt_product_keys<c10::BFloat16>(at::kBFloat16);
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBFloat16}) {
    EngineConfig config = tiny_config("v41-tiny");
    config.dtype = dtype;
    config.page_size = 64;
    config.max_model_len = 4096;
    const auto engine = Engine::load(data_path("v41-tiny"), config);
    // The same place within a page and a group, with every kind of key at its limit. The first time makes scratch
    // memory, and the product kernels of shapes that were not seen before.
    std::map<int64_t, int64_t> taken;
    for (int time = 0; time < 2; ++time) {
      for (const int64_t length : {100, 100 + 64 * 10, 100 + 64 * 60})
        taken[length] = decode_step_bytes(*engine, length);
    }
    EXPECT_GT(taken[100], 0);
    EXPECT_EQ(taken[100 + 64 * 10], taken[100]);
    EXPECT_EQ(taken[100 + 64 * 60], taken[100]);
  }
}

}  // namespace
}  // namespace reprise::testing
