#include "reprise/decoder_replay_layers.h"

#include <ATen/ops/zeros.h>

#include <optional>
#include <utility>

#include "memory/cpu_storage.h"
#include "memory/tensor_cache.h"
#include "replay/narrow_rows.h"
#include "replay/replay_rows.h"
#include "replay/row_copy.h"
#include "reprise/error.h"

namespace reprise {
namespace {

at::DimVector with_rows(const at::Tensor& tensor, int64_t num_rows) {
  at::DimVector sizes(tensor.sizes());
  sizes[0] = num_rows;
  return sizes;
}

at::Tensor scatter(const at::Tensor& layer_output, const ReplayRows& kept, int64_t num_rows) {
  const at::Tensor output = layer_output.contiguous();
  if (!copies_as_bytes(output)) {
    return at::zeros(with_rows(output, num_rows), output.options())
        .index_copy_(0, kept.index_on(output.device()).to(at::kLong), output);
  }
  const at::Tensor scattered = lazy_zeros(with_rows(output, num_rows), output.options());
  scatter_runs(output, kept.runs(), /*in_any_order=*/kept.ascend(), scattered);
  return scattered;
}

void check_inputs(const ReplayRows& kept, const std::vector<at::Tensor>& inputs,
                  const std::vector<at::Tensor>& row_buffers) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) continue;
    REPRISE_REQUIRE(inputs[i].dim() >= 1, "[DecoderReplayLayers] wanted per-row inputs but input ", i,
                    " is a scalar; pass tensors whose first dimension is the batch's rows");
    kept.check_within(inputs[i].size(0), i == 0 ? "hidden_states" : "a state");
  }
  for (const at::Tensor& buffer : row_buffers) {
    kept.check_within(buffer.size(0), "a row buffer");
    REPRISE_REQUIRE(kept.size() <= buffer.size(0), "[DecoderReplayLayers] wanted at most ", buffer.size(0),
                    " rows, as many as the shortest row buffer has, but got ", kept.size());
  }
}

void check_outputs(const ReplayRows& kept, const std::vector<at::Tensor>& outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor& output = outputs[i];
    if (!output.defined()) continue;
    REPRISE_REQUIRE(output.dim() >= 1 && output.size(0) == kept.size(), "[DecoderReplayLayers] wanted output ", i,
                    " of run_layers to have ", kept.size(), " rows, one per kept row, but got shape ", output.sizes());
  }
}

}  // namespace

DecoderReplayLayers::DecoderReplayLayers(int64_t window, RunLayers run_layers, States row_buffers)
    : window_(window), gathered_memory_(std::make_shared<TensorCache>()) {
  REPRISE_REQUIRE(window_ >= 1, "[DecoderReplayLayers] wanted a window of at least 1 row but got ", window_);
  set_run_layers(std::move(run_layers));
  set_row_buffers(std::move(row_buffers));
}

void DecoderReplayLayers::set_run_layers(RunLayers run_layers) {
  REPRISE_REQUIRE(run_layers != nullptr, "[DecoderReplayLayers] wanted a function to run the layers but got none");
  run_layers_ = std::move(run_layers);
}

void DecoderReplayLayers::set_row_buffers(States row_buffers) {
  for (const at::Tensor& buffer : row_buffers) {
    REPRISE_REQUIRE(buffer.defined() && buffer.dim() >= 1,
                    "[DecoderReplayLayers] wanted row buffers whose first dimension is the batch's rows");
  }
  row_buffers_ = std::move(row_buffers);
}

DecoderReplayLayers::States DecoderReplayLayers::run_on_rows(const ReplayRows& kept, const States& inputs,
                                                             bool allow_views) {
  check_inputs(kept, inputs, row_buffers_);
  Rows rows_kept(inputs.begin(), inputs.end());
  std::optional<ScopedForwardContext> scope;
  {
    const TensorSourceScope memory(*gathered_memory_);
    narrow_rows(rows_kept, {.runs = kept.runs(), .ascend = kept.ascend(), .index = rows, .allow_views = allow_views},
                row_buffers_, forward_context, scope);
  }
  return run_layers_({rows_kept.begin(), rows_kept.end()});
}

DecoderReplayLayers::States DecoderReplayLayers::operator()(const States& inputs) {
  if (!rows.defined()) return run_layers_(inputs);
  REPRISE_REQUIRE(!inputs.empty() && inputs[0].defined() && inputs[0].dim() >= 1,
                  "[DecoderReplayLayers] wanted hidden states, one row per row of the batch, as the first input");
  const ReplayRows kept(rows);
  States outputs = run_on_rows(kept, inputs, /*allow_views=*/false);
  check_outputs(kept, outputs);
  for (at::Tensor& output : outputs) {
    if (output.defined()) output = scatter(output, kept, inputs[0].size(0));
  }
  return outputs;
}

DecoderReplayLayers::States DecoderReplayLayers::run_kept(const States& inputs) {
  if (!rows.defined()) return run_layers_(inputs);
  return run_on_rows(ReplayRows(rows), inputs, /*allow_views=*/true);
}

}  // namespace reprise
