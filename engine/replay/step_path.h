#pragma once

#include <cstdint>
#include <span>

namespace reprise {

// How a step's forward runs.
//   kWholeBatchInGraph  encoder and replay layers replayed from captured graphs, every layer on every row.
//   kWholeBatch         the same rows, layer by layer.
//   kKeptRows           encoder layers on the batch, replay layers on the rows that each of them keeps.
//   kKeptRowsInGraph    encoder layers on the batch, replay layers from a graph of their own on the rows they receive.
enum class StepPath { kWholeBatchInGraph, kWholeBatch, kKeptRows, kKeptRowsInGraph };

// What the choice rests on.
struct StepFacts {
  int64_t num_rows = 0;              // of the batch
  int64_t num_kept_rows = 0;         // of them, those that the last KV source hands to the replay layers
  bool encoder_narrows = false;      // an earlier layer keeps fewer rows, or a narrower window, than the batch has
  bool replay_narrows = false;       // replay layers differ in rows or window; the last one's fewer rows do not count:
                                     // computing the others too changes no value
  std::span<const int64_t> buckets;  // row counts that graphs exist for, ascending; empty = no graphs
};

// The smallest bucket that holds `num_rows`; 0 when there is none.
int64_t bucket_for(int64_t num_rows, std::span<const int64_t> buckets);

// A graph has one row count and one context for all its layers, so whatever narrows on the way runs layer by layer, and
// a step that trims never runs as a whole batch: it would compute what was to be saved and, under bounded replay,
// another result. There is no least number of rows to save: on the CPU trimming paid at every prompt length measured,
// from 2 tokens up.
StepPath choose_step_path(const StepFacts& facts);

}  // namespace reprise
