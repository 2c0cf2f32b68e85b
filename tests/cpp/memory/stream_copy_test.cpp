#include "memory/stream_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace reprise {
namespace {

TEST(StreamCopy, CopiesEverySizeAtEveryAlignmentAndNothingElse) {
  constexpr size_t kMargin = 64;
  std::vector<uint8_t> source(1024);
  std::iota(source.begin(), source.end(), uint8_t{1});
  for (const size_t size : {0, 1, 15, 63, 64, 65, 127, 128, 200, 448}) {
    for (size_t to = 0; to < 64; to += 3) {
      for (const size_t from : {0, 1, 32, 63}) {
        std::vector<uint8_t> target(kMargin + 64 + size + kMargin, 0xee);
        std::vector<uint8_t> want = target;
        const auto place = static_cast<int64_t>(kMargin + to);
        std::copy_n(source.begin() + static_cast<int64_t>(from), size, want.begin() + place);
        stream_copy(target.data() + place, source.data() + from, size);
        ASSERT_EQ(target, want) << size << " bytes from " << from << " to " << to;
      }
    }
  }
}

}  // namespace
}  // namespace reprise
