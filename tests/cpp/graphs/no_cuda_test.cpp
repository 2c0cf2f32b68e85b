// A build without CUDA.
#include <gtest/gtest.h>

#include "graphs/graph_runner.h"

namespace reprise {
namespace {

TEST(NoCuda, GraphsOnAGpuAreRefusedWithWhatToDo) {
  bool ran = false;
  try {
    make_graph_runner(at::kCUDA, [&ran] {
      ran = true;
      return GraphRunner::Outputs();
    });
    FAIL() << "wanted std::invalid_argument";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("REPRISE_CUDA=ON"), std::string::npos) << error.what();
  }
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace reprise
