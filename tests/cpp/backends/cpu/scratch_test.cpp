#include "backends/cpu/scratch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <thread>
#include <vector>

namespace reprise::cpu {
namespace {

bool is_aligned(const void* memory) { return std::bit_cast<uintptr_t>(memory) % 64 == 0; }

TEST(ScratchFrame, HandsOutAlignedMemoryThatNothingElseGets) {
  constexpr unsigned kSeed = 301;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  struct Piece {
    int32_t* values;
    int64_t count;
  };
  std::vector<Piece> pieces;
  const auto take = [&](ScratchFrame& frame) {
    const int64_t count = random() % 8 == 0 ? 100000 : random() % 50;
    int32_t* values = frame.take<int32_t>(count);
    ASSERT_TRUE(is_aligned(values));
    std::fill_n(values, count, static_cast<int32_t>(pieces.size()));
    pieces.push_back({values, count});
  };
  const auto check = [&] {
    for (size_t i = 0; i < pieces.size(); ++i) {
      ASSERT_TRUE(std::all_of(pieces[i].values, pieces[i].values + pieces[i].count,
                              [&](int32_t value) { return value == static_cast<int32_t>(i); }));
    }
  };
  const auto nest = [&](const auto& self, int depth) -> void {
    ScratchFrame frame;
    const size_t before = pieces.size();
    for (int i = 0; i < 4; ++i) {
      take(frame);
      if (depth > 0) self(self, depth - 1);
      check();
    }
    pieces.resize(before);
  };
  for (int call = 0; call < 3; ++call) nest(nest, 3);
}

TEST(ScratchFrame, GivesTheSameMemoryAgainOnceItHasGrown) {
  const auto addresses = [] {
    std::vector<const void*> taken;
    ScratchFrame outer;
    taken.push_back(outer.take<float>(10));
    for (int i = 0; i < 3; ++i) {
      ScratchFrame inner;
      taken.push_back(inner.take<float>(1 << 20));
      taken.push_back(inner.take<std::byte>(1));
    }
    taken.push_back(outer.take<double>(1 << 18));
    return taken;
  };
  addresses();
  const auto warm = addresses();
  EXPECT_EQ(addresses(), warm);
  EXPECT_EQ(warm[1], warm[3]);
  EXPECT_EQ(warm[1], warm[5]);
  EXPECT_EQ(warm[7], warm[1]);  // what inner frames had is free again
}

TEST(ScratchFrame, IsOfItsThread) {
  ScratchFrame frame;
  int32_t* ours = frame.take<int32_t>(1000);
  std::fill_n(ours, 1000, 1);
  std::thread([] {
    ScratchFrame theirs;
    std::fill_n(theirs.take<int32_t>(1000), 1000, 2);
  }).join();
  EXPECT_EQ(std::count(ours, ours + 1000, 1), 1000);
}

TEST(ScratchPoison, MakesUnwrittenValuesShow) {
  const auto taken = [] {
    ScratchFrame frame;
    const float* values = frame.take<float>(100);
    return std::vector<float>(values, values + 100);
  };
  {
    ScratchFrame frame;
    std::fill_n(frame.take<float>(100), 100, 1.0f);
  }
  {
    const ScratchPoison poison;
    for (const float value : taken()) EXPECT_TRUE(std::isnan(value));
    std::thread([&] {
      for (const float value : taken()) EXPECT_TRUE(std::isnan(value));
    }).join();
    ScratchFrame frame;
    EXPECT_EQ(*frame.take<int64_t>(1), -1);
  }
}

}  // namespace
}  // namespace reprise::cpu
