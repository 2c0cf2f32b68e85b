// Linked in place of cuda_*.cpp where CUDA is off (REPRISE_CUDA).
#include "graphs/graph_runner.h"
#include "reprise/error.h"

namespace reprise {

std::unique_ptr<GraphRunner> make_cuda_graph_runner(at::Device device, GraphRunner::Work) {
  throw std::invalid_argument(concat("[graphs] wanted the cpu, which this build runs on, but got ", device,
                                     "; build with REPRISE_CUDA=ON for CUDA graphs"));
}

}  // namespace reprise
