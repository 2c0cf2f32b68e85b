#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <utility>

#include "graphs/graph_runner.h"

namespace reprise {

namespace {

class CudaGraphRunner final : public GraphRunner {
 public:
  CudaGraphRunner(at::Device device, Work work) : work_(std::move(work)) {
    const c10::cuda::CUDAGuard device_guard(device);
    const c10::cuda::CUDAStream caller = c10::cuda::getCurrentCUDAStream();
    const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
    const c10::cuda::CUDAStreamGuard stream_guard(stream);
    // What the caller's stream has yet to write into the input buffers comes first.
    caller.synchronize();
    // Libraries create handles and workspaces on first use, which a capture does not allow.
    work_();
    stream.synchronize();
    // Other threads may use the device meanwhile.
    graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      outputs_ = work_();
    } catch (...) {
      end_failed_capture();
      throw;
    }
    graph_.capture_end();
  }

  // On the caller's current stream.
  const Outputs& run() override {
    graph_.replay();
    return outputs_;
  }

 private:
  // The stream must leave the capture; what it says about the broken graph is not what went wrong.
  void end_failed_capture() noexcept {
    try {
      graph_.capture_end();
    } catch (...) {
    }
  }

  Work work_;  // owns what the capture points to
  at::cuda::CUDAGraph graph_;
  Outputs outputs_;  // in the graph's memory pool; declared after the graph, so they go first
};

}  // namespace

std::unique_ptr<GraphRunner> make_cuda_graph_runner(at::Device device, GraphRunner::Work work) {
  return std::make_unique<CudaGraphRunner>(device, std::move(work));
}

}  // namespace reprise
