#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>

#include <functional>
#include <memory>

namespace reprise {

// Runs one piece of work again and again whose inputs and outputs keep their shapes and their addresses.
class GraphRunner {
 public:
  using Outputs = c10::SmallVector<at::Tensor, 4>;
  using Work = std::function<Outputs()>;

  virtual ~GraphRunner() = default;

  // Runs the work on what its input buffers hold now. The outputs are the same tensors every time.
  virtual const Outputs& run() = 0;
};

// The runner for a device. It runs `work` here, so its inputs must hold something harmless: what it does to memory
// besides its outputs happens now too. `work` reads and writes only memory that outlives the runner, and always does
// the same. Throws std::invalid_argument for a device that this build does not run on.
std::unique_ptr<GraphRunner> make_graph_runner(at::Device device, GraphRunner::Work work);

// Runs the work itself, on a tape of the tensors that its kernels take (empty_tensor): those of the first run serve
// every other, so that work which takes no memory besides allocates nothing. What the work returns is copied to output
// buffers that stay where they are, unless it lies there already. Static shapes without a capture: what holds for a
// graph can be tested without a GPU.
std::unique_ptr<GraphRunner> make_cpu_graph_runner(GraphRunner::Work work);

// Captures the work as a CUDA graph, on a stream of its own, and replays it.
std::unique_ptr<GraphRunner> make_cuda_graph_runner(at::Device device, GraphRunner::Work work);

}  // namespace reprise
