#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "reprise/forward_context.h"

namespace reprise {

class ReplayRows;
class TensorCache;

// Runs the replay layers on the rows a step keeps.
//
// `run_layers` takes a batch's layer inputs (hidden states first, then further per-row states, absent ones undefined
// tensors) and returns its per-row outputs. `row_buffers` hold per-row results that the source layer's indexer
// publishes for the layers after it; they are compacted in place to their first len(rows) rows.
//
// Tensors of any dtype and device. CPU tensors that record no gradient take row copies; all others take the plain
// operators, which are differentiable. Rows on a GPU are read back to be checked (one synchronisation).
class DecoderReplayLayers {
 public:
  using States = std::vector<at::Tensor>;  // an undefined tensor is an absent state
  using RunLayers = std::function<States(const States& inputs)>;

  // Throws std::invalid_argument for a window below 1, a missing run_layers or an undefined row buffer.
  DecoderReplayLayers(int64_t window, RunLayers run_layers, States row_buffers);

  // The replay batch, set before every step: batch rows (int32 or int64, any order, repeats allowed) and the context
  // they run under. An undefined `rows` runs the layers on the whole batch under the current context.
  at::Tensor rows;
  std::shared_ptr<ForwardContext> forward_context;

  // Gathers, runs under forward_context, and scatters the outputs to batch rows; trimmed rows are zero, a repeated row
  // holds its last output. The outputs are fresh and alias nothing; run_layers may keep and change its inputs. Throws
  // std::out_of_range for a row outside the batch before anything is written, std::invalid_argument for rows that are
  // no vector of integers and for outputs that do not have one row per kept row.
  States operator()(const States& inputs);
  // The same without the scatter: the outputs as the layers return them, who may keep fewer rows still. Where the rows
  // are one run of consecutive rows, run_layers gets views of the inputs: what it changes in place changes them.
  States run_kept(const States& inputs);

  int64_t window() const { return window_; }
  const States& row_buffers() const { return row_buffers_; }
  // What the constructor takes, with its checks.
  void set_run_layers(RunLayers run_layers);
  void set_row_buffers(States row_buffers);

 private:
  // Row buffers compacted, inputs gathered, layers run under forward_context; each output checked to have num_kept
  // rows.
  States run_on_rows(const ReplayRows& kept, const States& inputs, bool allow_views);

  int64_t window_;
  RunLayers run_layers_;
  States row_buffers_;
  std::shared_ptr<TensorCache> gathered_memory_;
};

}  // namespace reprise
