// Linked where there is no backends/cuda/ or CUDA is off (REPRISE_CUDA).
#include "backends/kernels.h"
#include "reprise/error.h"

namespace reprise {

const Kernels& cuda_kernels() {
  throw std::invalid_argument(
      "[backends] wanted tensors on the cpu, which this build has kernels for, but got cuda ones; build with "
      "REPRISE_CUDA=ON for kernels of CUDA");
}

}  // namespace reprise
