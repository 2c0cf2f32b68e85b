#include "graphs/graph_runner.h"

#include <utility>

#include "reprise/error.h"

namespace reprise {

std::unique_ptr<GraphRunner> make_graph_runner(at::Device device, GraphRunner::Work work) {
  REPRISE_REQUIRE(device.is_cpu() || device.is_cuda(), "[graphs] wanted a cpu or cuda device but got ", device);
  if (device.is_cuda()) return make_cuda_graph_runner(device, std::move(work));
  return make_cpu_graph_runner(std::move(work));
}

}  // namespace reprise
