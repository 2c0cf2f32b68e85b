#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "context/kv_cache.h"
#include "graphs/fixed_rows.h"
#include "graphs/graph_runner.h"
#include "models/model.h"
#include "reprise/step_inputs.h"

namespace reprise {

struct GraphOptions {
  std::vector<int64_t> buckets;  // row counts, ascending
  int64_t max_num_seqs = 0;
  bool poison = false;  // padding rows start out as NaN, to show where one reaches an output
};

// Ranges of the layer walk that run from graphs, one per range and bucket, each made when it is first needed. A step's
// rows are copied to the smallest bucket's buffers, and the rows behind them are padding, which reaches neither the
// caches nor an output. All layers of a range run on the same rows; what they give stays valid until the range's next
// run.
class GraphedWalk {
 public:
  // `model` and the cache that the ranges are given outlive this object. `cut_layer`: between its halves the rows are
  // handed from one range to the other.
  GraphedWalk(Model& model, int64_t cut_layer, GraphOptions options);
  ~GraphedWalk();
  GraphedWalk(const GraphedWalk&) = delete;
  GraphedWalk& operator=(const GraphedWalk&) = delete;

  const std::vector<int64_t>& buckets() const { return options_.buckets; }

  // The batch, from the token ids to what the cut layer has received.
  const Rows& run_encoder(const StepInputs& inputs, KvCache& cache);
  // From there on, on `rows` of the set that the cut layer computes; the layers behind it run on the same rows,
  // whatever the last one keeps.
  const Rows& run_replay(const Rows& rows, const StepInputs& inputs, KvCache& cache);
  // Final norm and head of the wanted rows, in a graph where logits of all of them are wanted.
  StepOutputs finish(const StepInputs& inputs, const Rows& rows);

 private:
  struct Stage;

  size_t bucket_index(int64_t num_rows) const;
  std::unique_ptr<Stage> make_encoder(int64_t num_rows, const StepInputs& like, KvCache& cache);
  std::unique_ptr<Stage> make_replay(int64_t num_rows, const Rows& like, const StepInputs& inputs, KvCache& cache);
  std::unique_ptr<Stage> make_finish(int64_t num_rows, const Rows& like);
  void make_rows(Stage& stage, int64_t num_rows, const Rows& like) const;

  Model& model_;
  int64_t cut_layer_;
  int64_t num_layers_;
  GraphOptions options_;
  std::vector<std::unique_ptr<Stage>> encoders_;  // per bucket; null until first used
  std::vector<std::unique_ptr<Stage>> replays_;
  std::vector<std::unique_ptr<Stage>> finishes_;
};

}  // namespace reprise
