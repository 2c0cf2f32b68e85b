#include "replay/step_path.h"

#include <algorithm>

namespace reprise {

int64_t bucket_for(int64_t num_rows, std::span<const int64_t> buckets) {
  const auto bucket = std::lower_bound(buckets.begin(), buckets.end(), num_rows);
  return bucket == buckets.end() ? 0 : *bucket;
}

StepPath choose_step_path(const StepFacts& facts) {
  const bool trims = facts.num_kept_rows < facts.num_rows;
  const bool fits_graph =
      facts.num_kept_rows > 0 && !facts.replay_narrows && bucket_for(facts.num_kept_rows, facts.buckets) > 0;
  if (trims) return fits_graph ? StepPath::kKeptRowsInGraph : StepPath::kKeptRows;
  return fits_graph && !facts.encoder_narrows ? StepPath::kWholeBatchInGraph : StepPath::kWholeBatch;
}

}  // namespace reprise
