#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "context/kv_cache.h"
#include "graphs/fixed_rows.h"
#include "graphs/graph_runner.h"
#include "models/model.h"
#include "reprise/config.h"

namespace reprise {

struct GraphOptions {
  std::vector<int64_t> buckets;  // row counts, ascending
  int64_t max_num_seqs = 0;
  bool poison = false;  // padding rows start out as NaN, to show where one reaches an output
};

// A model whose stages run from graphs, one per stage and bucket, each made when it is first needed. A step's rows are
// copied to the smallest bucket's buffers, and the rows behind them are padding, which reaches neither the caches nor
// an output. All layers of a stage run on the bucket's rows: where a step's layers narrow the rows, the caller takes
// the wanted ones from the result.
class GraphedModel final : public Model {
 public:
  // `model` and the cache that the stages are given outlive this object.
  GraphedModel(const ModelConfig& config, Model& model, GraphOptions options);
  ~GraphedModel() override;

  // States that stay valid until the stage's next run; run_replay may be given them.
  States run_encoder(const StepInputs& inputs, KvCache& cache) override;
  States run_replay(const States& states, const StepInputs& inputs, KvCache& cache) override;
  // In a graph of the wanted rows where logits of all of them are wanted; the outputs too are valid until its next run.
  StepOutputs finish(const States& states, const StepInputs& inputs) override;
  std::vector<at::Tensor> row_buffers() const override { return model_.row_buffers(); }
  int64_t weight_bytes() const override { return model_.weight_bytes(); }

 private:
  struct Stage;

  size_t bucket_index(int64_t num_rows) const;
  std::unique_ptr<Stage> make_encoder(int64_t num_rows, const StepInputs& like, KvCache& cache);
  std::unique_ptr<Stage> make_replay(int64_t num_rows, const States& like, const ForwardContext& context,
                                     KvCache& cache);
  std::unique_ptr<Stage> make_finish(int64_t num_rows, const States& like);
  void make_states(Stage& stage, int64_t num_rows, const States& like) const;

  ModelConfig config_;
  Model& model_;
  GraphOptions options_;
  std::vector<std::unique_ptr<Stage>> encoders_;  // per bucket; null until first used
  std::vector<std::unique_ptr<Stage>> replays_;
  std::vector<std::unique_ptr<Stage>> finishes_;
};

}  // namespace reprise
