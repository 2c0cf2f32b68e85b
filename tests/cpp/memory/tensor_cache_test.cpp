#include "memory/tensor_cache.h"

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace reprise {
namespace {

constexpr int64_t kKiB = 1024;

at::Tensor bytes(int64_t size) { return empty_tensor({size}, at::kByte); }

TEST(TensorCacheTest, GivesTheSameMemoryAgain) {
  TensorCache cache;
  const TensorSourceScope scope(cache);
  const void* first = bytes(256 * kKiB).const_data_ptr();
  EXPECT_EQ(bytes(200 * kKiB).const_data_ptr(), first) << "a little smaller fits";
  const at::Tensor held = bytes(256 * kKiB);
  EXPECT_NE(bytes(256 * kKiB).const_data_ptr(), held.const_data_ptr()) << "what is in use is not given twice";
}

TEST(TensorCacheTest, HoldsNoMoreThanWasInUseAtOnce) {
  TensorCache cache;
  const TensorSourceScope scope(cache);
  // A ramp: every size is new, and no block of before serves it.
  for (int64_t size = 64; size <= 64 * 40; size += 64) {
    bytes(size * kKiB);
    EXPECT_LE(cache.bytes(), static_cast<size_t>(size * kKiB));
  }
  {
    const std::vector<at::Tensor> together = {bytes(512 * kKiB), bytes(512 * kKiB), bytes(4096 * kKiB)};
  }
  EXPECT_LE(cache.bytes(), static_cast<size_t>(5120 * kKiB));
}

TEST(TensorCacheTest, OnlyInScopeAndOnlyWhatIsBig) {
  TensorCache cache;
  bytes(256 * kKiB);
  EXPECT_EQ(cache.bytes(), 0u);
  {
    TensorCache inner;
    const TensorSourceScope scope(cache);
    {
      const TensorSourceScope nested(inner);
      bytes(256 * kKiB);
    }
    EXPECT_EQ(cache.bytes(), 0u);
    EXPECT_EQ(inner.bytes(), static_cast<size_t>(256 * kKiB));
    bytes(100);
    EXPECT_EQ(cache.bytes(), 0u);
    bytes(256 * kKiB);
  }
  EXPECT_EQ(cache.bytes(), static_cast<size_t>(256 * kKiB));
}

TEST(TensorCacheTest, OtherDevicesHaveCachesOfTheirOwn) {
  TensorCache cache;
  const TensorSourceScope scope(cache);
  EXPECT_TRUE(empty_tensor({256 * kKiB}, at::TensorOptions(at::kByte).device(at::kMeta)).is_meta());
  EXPECT_EQ(cache.bytes(), 0u);
}

TEST(TensorCacheTest, ItsTensorsCanGrow) {
  TensorCache cache;
  const TensorSourceScope scope(cache);
  at::Tensor tensor = bytes(256 * kKiB);
  tensor.fill_(7);
  tensor.resize_({512 * kKiB});
  EXPECT_EQ(tensor.narrow(0, 0, 256 * kKiB).sum().item().toLong(), 7 * 256 * kKiB);
}

// Counts the CPU memory of tensors that is given out and not yet given back.
class CountingAllocator final : public c10::Allocator {
 public:
  CountingAllocator() : inner_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, /*priority=*/1); }
  ~CountingAllocator() override { c10::SetCPUAllocator(inner_, /*priority=*/1); }
  c10::DataPtr allocate(size_t size) override {
    bytes += static_cast<int64_t>(size);
    auto memory = std::make_shared<c10::DataPtr>(inner_->allocate(size));
    void* data = memory->get();
    return c10::InefficientStdFunctionContext::makeDataPtr(
        data, [this, size, memory = std::move(memory)](void*) { bytes -= static_cast<int64_t>(size); }, at::kCPU);
  }
  void copy_data(void* to, const void* from, size_t size) const override { inner_->copy_data(to, from, size); }
  int64_t bytes = 0;

 private:
  c10::Allocator* inner_;
};

// A weight that is kept as it was loaded must not keep what the other weights passed through.
TEST(TensorCacheTest, IdleMemoryEndsWithTheCacheWhileItsTensorsLive) {
  CountingAllocator counting;
  at::Tensor kept;
  {
    TensorCache cache;
    const TensorSourceScope scope(cache);
    kept = bytes(256 * kKiB);
    at::Tensor second = bytes(256 * kKiB);
    bytes(1024 * kKiB);
    EXPECT_EQ(counting.bytes, (256 + 256 + 1024) * kKiB);
  }
  EXPECT_EQ(counting.bytes, 256 * kKiB);
  kept.reset();
  EXPECT_EQ(counting.bytes, 0);
}

TEST(TensorCacheTest, TensorsOutliveTheCache) {
  at::Tensor tensor;
  {
    TensorCache cache;
    const TensorSourceScope scope(cache);
    tensor = bytes(256 * kKiB);
  }
  tensor.fill_(7);
  EXPECT_EQ(tensor.sum().item().toLong(), 7 * 256 * kKiB);
}

}  // namespace
}  // namespace reprise
