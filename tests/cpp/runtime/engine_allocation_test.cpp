// A decode step takes the same memory wherever in its context a request stands.
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "engine_harness.h"

namespace {
std::atomic<int64_t> bytes_allocated = 0;
// libtorch's product kernel makes and frees one of 56 bytes per call, and there is a call for each 128 keys.
constexpr std::size_t kSmall = 64;
}  // namespace

void* operator new(std::size_t size) {
  if (size > kSmall) bytes_allocated += static_cast<int64_t>(size);
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace reprise::testing {
namespace {

// Tensors' memory does not come from operator new.
class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* next) : next_(next) {}
  c10::DataPtr allocate(size_t bytes) override {
    bytes_allocated += static_cast<int64_t>(bytes);
    return next_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return next_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { next_->copy_data(to, from, bytes); }

 private:
  c10::Allocator* next_;
};

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
  const int64_t before = bytes_allocated;
  engine.step();
  const int64_t taken = bytes_allocated - before;
  engine.abort(id);
  engine.step();
  return taken;
}

TEST(EngineAllocationTest, ADecodeStepTakesNoMemoryThatGrowsWithTheContext) {
  static CountingAllocator allocator(c10::GetCPUAllocator());
  c10::SetCPUAllocator(&allocator, 1);
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
