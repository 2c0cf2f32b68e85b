#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "backends/room.h"

namespace reprise {
namespace {

TEST(NoCuda, KernelsSayHowToGetThem) {
  try {
    room_of(at::Device(at::kCUDA, 0));
    FAIL() << "there are none";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("REPRISE_CUDA=ON"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace reprise
