#include "backends/kernels.h"

namespace reprise::cpu {

decltype(Kernels::pack_weight)::Function pack_weight;
decltype(reprise::linear) linear;
decltype(reprise::route_experts) route_experts;
decltype(reprise::run_experts) run_experts;
decltype(reprise::sum_experts) sum_experts;
decltype(reprise::window_sparse_attention) window_sparse_attention;
decltype(reprise::select_compressed) select_compressed;
decltype(reprise::compress_groups) compress_groups;
decltype(reprise::write_cells) write_cells;
decltype(reprise::rotate_and_round) rotate_and_round;
decltype(reprise::rope_angles) rope_angles;
decltype(reprise::rms_norm) rms_norm;
decltype(reprise::stream_mix) stream_mix;
decltype(reprise::first_stream) first_stream;
decltype(reprise::collapse_and_norm) collapse_and_norm;
decltype(reprise::expand_streams) expand_streams;
decltype(reprise::add_gated_memory) add_gated_memory;
decltype(Kernels::cast)::Function cast;
decltype(reprise::read_floats) read_floats;
decltype(reprise::embed_streams) embed_streams;
decltype(reprise::lookup_rows) lookup_rows;

namespace {

constexpr Kernels kTable{
    .pack_weight = cpu::pack_weight,
    .linear = cpu::linear,
    .route_experts = cpu::route_experts,
    .run_experts = cpu::run_experts,
    .sum_experts = cpu::sum_experts,
    .window_sparse_attention = cpu::window_sparse_attention,
    .select_compressed = cpu::select_compressed,
    .compress_groups = cpu::compress_groups,
    .write_cells = cpu::write_cells,
    .rotate_and_round = cpu::rotate_and_round,
    .rope_angles = cpu::rope_angles,
    .rms_norm = cpu::rms_norm,
    .stream_mix = cpu::stream_mix,
    .first_stream = cpu::first_stream,
    .collapse_and_norm = cpu::collapse_and_norm,
    .expand_streams = cpu::expand_streams,
    .add_gated_memory = cpu::add_gated_memory,
    .cast = cpu::cast,
    .read_floats = cpu::read_floats,
    .embed_streams = cpu::embed_streams,
    .lookup_rows = cpu::lookup_rows,
};

}  // namespace

}  // namespace reprise::cpu

namespace reprise {

const Kernels& cpu_kernels() { return cpu::kTable; }

}  // namespace reprise
