#pragma once

#include <cstddef>

#include "backends/cache_write.h"
#include "backends/cast.h"
#include "backends/compress_groups.h"
#include "backends/embedding.h"
#include "backends/experts.h"
#include "backends/gated_memory.h"
#include "backends/linear.h"
#include "backends/norm.h"
#include "backends/rope.h"
#include "backends/select_positions.h"
#include "backends/stream_mix.h"
#include "backends/window_attention.h"

namespace reprise {

// One kernel of a room, called like the function it points to. It has no empty state, so a table that lacks a kernel
// does not compile.
template <typename F>
class Kernel {
 public:
  using Function = F;

  constexpr Kernel(F* run) : run_(run) {}
  constexpr Kernel(std::nullptr_t) = delete;
  constexpr operator F*() const { return run_; }

 private:
  F* run_;
};

// All that a room must offer. A kernel does what the function of its name in backends/*.h says, which has checked the
// arguments; where their types differ, what a kernel does is said here.
struct Kernels {
  // Lays a weight [out, in] out in `values` [out * in], of the same dtype.
  Kernel<void(const at::Tensor& weight, const at::Tensor& values)> pack_weight;
  Kernel<decltype(reprise::linear)> linear;

  Kernel<decltype(reprise::route_experts)> route_experts;
  Kernel<decltype(reprise::run_experts)> run_experts;
  Kernel<decltype(reprise::sum_experts)> sum_experts;

  Kernel<decltype(reprise::window_sparse_attention)> window_sparse_attention;
  Kernel<decltype(reprise::select_compressed)> select_compressed;
  Kernel<decltype(reprise::compress_groups)> compress_groups;
  Kernel<decltype(reprise::write_cells)> write_cells;
  Kernel<decltype(reprise::rotate_and_round)> rotate_and_round;
  Kernel<decltype(reprise::rope_angles)> rope_angles;

  Kernel<decltype(reprise::rms_norm)> rms_norm;
  Kernel<decltype(reprise::stream_mix)> stream_mix;
  Kernel<decltype(reprise::first_stream)> first_stream;
  Kernel<decltype(reprise::collapse_and_norm)> collapse_and_norm;
  Kernel<decltype(reprise::expand_streams)> expand_streams;
  Kernel<decltype(reprise::add_gated_memory)> add_gated_memory;

  // y = x in y's dtype; one of the two is float32.
  Kernel<void(const at::Tensor& x, const at::Tensor& y)> cast;
  Kernel<decltype(reprise::read_floats)> read_floats;
  Kernel<decltype(reprise::embed_streams)> embed_streams;
  Kernel<decltype(reprise::lookup_rows)> lookup_rows;
};

const Kernels& cpu_kernels();
// Throws std::invalid_argument where this build has none.
const Kernels& cuda_kernels();

}  // namespace reprise
