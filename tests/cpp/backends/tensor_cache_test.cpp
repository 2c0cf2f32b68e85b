#include "backends/tensor_cache.h"

#include <gtest/gtest.h>

#include <optional>
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
