#include <cstring>
#include <utility>

#include "graphs/graph_runner.h"
#include "memory/tensor_tape.h"
#include "reprise/error.h"

namespace reprise {

namespace {

class CpuGraphRunner final : public GraphRunner {
 public:
  explicit CpuGraphRunner(Work work) : work_(std::move(work)) {
    const TensorSourceScope scope(tape_);
    outputs_ = work_();
    for (at::Tensor& output : outputs_) output = output.contiguous();
  }

  const Outputs& run() override {
    tape_.rewind();
    const TensorSourceScope scope(tape_);
    const Outputs fresh = work_();
    REPRISE_ENSURE(fresh.size() == outputs_.size(), "the work returned ", fresh.size(), " outputs, not ",
                   outputs_.size());
    for (size_t i = 0; i < fresh.size(); ++i) {
      const at::Tensor& kept = outputs_[i];
      REPRISE_ENSURE(fresh[i].sizes() == kept.sizes() && fresh[i].dtype() == kept.dtype() && fresh[i].is_contiguous(),
                     "output ", i, " changed its shape to ", fresh[i].sizes());
      // Work that runs in place returns its own buffer, and kernels write where they wrote before.
      if (fresh[i].const_data_ptr() == kept.const_data_ptr()) continue;
      std::memcpy(kept.mutable_data_ptr(), fresh[i].const_data_ptr(), kept.nbytes());
    }
    return outputs_;
  }

 private:
  Work work_;
  TensorTape tape_;
  Outputs outputs_;
};

}  // namespace

std::unique_ptr<GraphRunner> make_cpu_graph_runner(GraphRunner::Work work) {
  return std::make_unique<CpuGraphRunner>(std::move(work));
}

}  // namespace reprise
