#include "backends/window_attention.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "kernel_testing.h"

namespace reprise {
namespace {

// A request's keys by position (window) and by compressed position.
struct Keys {
  at::Tensor window;      // [length, D]
  at::Tensor compressed;  // [groups, D]
};

// A batch over pages in random order. Every cell that no row may read is NaN, as are the pad page and whatever table
// entries past a request's pages lead to.
struct Batch {
  int64_t heads, dim, window_size;
  at::ScalarType dtype;
  std::vector<Keys> keys;
  std::vector<int64_t> positions, starts;
  std::vector<int32_t> sequences;
  std::vector<std::vector<int32_t>> selections;
  at::Tensor q;
  AttentionMetadata rows;
  AttentionParams params;

  static constexpr int64_t kWindowPage = 8;
  static constexpr int64_t kCompressedPage = 4;
  static constexpr int64_t kEntries = 40;

  Batch(int64_t heads, int64_t dim, int64_t window_size, at::ScalarType dtype)
      : heads(heads), dim(dim), window_size(window_size), dtype(dtype) {}

  // Pages of one group: the cells and a table for state slots 2, 3, ... in reverse order of the sequences.
  PagedCells lay_out(bool compressed, int64_t page, std::mt19937& random) const {
    const int64_t pages = 1 + static_cast<int64_t>(keys.size()) * kEntries;
    std::vector<int32_t> order(static_cast<size_t>(pages - 1));
    std::iota(order.begin(), order.end(), 1);
    std::shuffle(order.begin(), order.end(), random);
    const at::Tensor block_table = at::full({static_cast<int64_t>(keys.size()) + 2, kEntries}, 0, at::kInt);
    const PagedCells cache{
        nans({pages * page, dim}, dtype), {block_table, compressed ? at::Tensor() : tensor_of(starts)}, page};
    size_t next = 0;
    for (size_t s = 0; s < keys.size(); ++s) {
      const at::Tensor& cells = compressed ? keys[s].compressed : keys[s].window;
      for (int64_t c = 0; c < cells.size(0); ++c) {
        at::Tensor entry = block_table[slot_of(s)][c / page];
        if (c % page == 0) entry.fill_(order[next++]);
        if (read_by_a_row(s, c, compressed)) cache.cells[entry.item<int32_t>() * page + c % page].copy_(cells[c]);
      }
    }
    return cache;
  }

  int32_t slot_of(size_t sequence) const { return static_cast<int32_t>(keys.size() + 1 - sequence); }

  bool read_by_a_row(size_t s, int64_t c, bool compressed) const {
    for (size_t t = 0; t < positions.size(); ++t) {
      if (sequences[t] != static_cast<int32_t>(s)) continue;
      const auto& chosen = selections[t];
      if (compressed ? std::count(chosen.begin(), chosen.end(), c) > 0 : c >= starts[t] && c <= positions[t])
        return true;
    }
    return false;
  }

  void add_row(int32_t sequence, int64_t position, std::vector<int32_t> selection, int64_t floor = 0) {
    sequences.push_back(sequence);
    positions.push_back(position);
    starts.push_back(std::max(floor, position - window_size + 1));
    selections.push_back(std::move(selection));
  }

  void finish(int64_t topk, int64_t half, const at::Tensor& sink, std::mt19937& random) {
    const auto count = static_cast<int64_t>(positions.size());
    std::vector<int32_t> slots;
    for (size_t s = 0; s < keys.size(); ++s) slots.push_back(slot_of(s));
    at::Tensor selection = at::full({count, topk}, -1, at::kInt);
    for (int64_t t = 0; t < count; ++t) {
      const auto& chosen = selections[static_cast<size_t>(t)];
      for (size_t i = 0; i < chosen.size(); ++i) selection[t][static_cast<int64_t>(i)] = chosen[i];
    }
    const at::Tensor angle = normal({count, half}, random, at::kFloat, 2);
    rows = {.positions = tensor_of(positions), .sequence_index = tensor_of(sequences), .state_slots = tensor_of(slots)};
    params = {.num_heads = heads,
              .head_dim = dim,
              .window = lay_out(false, kWindowPage, random),
              .compressed = lay_out(true, kCompressedPage, random),
              .selection = selection,
              .sink = sink,
              .rope = {angle.cos(), angle.sin()}};
  }

  at::Tensor attend() const { return window_sparse_attention(q, rows, params); }

  // The same batch of these rows only.
  Batch choose(const std::vector<int64_t>& chosen) const {
    Batch batch = *this;
    batch.q = rows_of(q, chosen);
    batch.rows.positions = rows_of(rows.positions, chosen);
    batch.rows.sequence_index = rows_of(rows.sequence_index, chosen);
    batch.params.window.group.window_starts = rows_of(params.window.group.window_starts, chosen);
    batch.params.selection = rows_of(params.selection, chosen);
    batch.params.rope = {rows_of(params.rope.cos, chosen), rows_of(params.rope.sin, chosen)};
    return batch;
  }

  // Softmax attention in double.
  std::vector<double> expected() const {
    const auto N = static_cast<size_t>(heads), D = static_cast<size_t>(dim),
               half = static_cast<size_t>(params.rope.cos.size(1));
    const auto cos = doubles(params.rope.cos), sin = doubles(params.rope.sin), sink = doubles(params.sink);
    std::vector<double> out = doubles(q);  // the queries, then the outputs in their place
    const auto rotate = [&](double* head, size_t t, double direction) {
      double* pairs = head + D - 2 * half;
      for (size_t j = 0; j < half; ++j) {
        const double a = pairs[2 * j], b = pairs[2 * j + 1], c = cos[t * half + j], s = direction * sin[t * half + j];
        pairs[2 * j] = a * c - b * s;
        pairs[2 * j + 1] = a * s + b * c;
      }
    };
    for (size_t t = 0; t < positions.size(); ++t) {
      std::vector<std::vector<double>> visible;
      if (sequences[t] >= 0) {
        const Keys& k = keys[static_cast<size_t>(sequences[t])];
        for (int64_t c = starts[t]; c <= positions[t]; ++c) visible.push_back(doubles(k.window[c]));
        for (const int32_t c : selections[t]) visible.push_back(doubles(k.compressed[c]));
      }
      for (size_t h = 0; h < N; ++h) {
        double* head = out.data() + (t * N + h) * D;
        rotate(head, t, 1);
        std::vector<double> scores;
        for (const auto& key : visible) {
          scores.push_back(std::inner_product(key.begin(), key.end(), head, 0.0) / std::sqrt(static_cast<double>(dim)));
        }
        double top = sink[h];
        for (const double score : scores) top = std::max(top, score);
        double total = std::exp(sink[h] - top);
        for (const double score : scores) total += std::exp(score - top);
        std::fill_n(head, D, 0.0);
        for (size_t k = 0; k < visible.size(); ++k) {
          for (size_t d = 0; d < D; ++d) head[d] += std::exp(scores[k] - top) / total * visible[k][d];
        }
        rotate(head, t, -1);
      }
    }
    return out;
  }
};

Keys random_keys(int64_t length, int64_t groups, int64_t dim, at::ScalarType dtype, std::mt19937& random) {
  return {normal({length, dim}, random, dtype), normal({groups, dim}, random, dtype)};
}

// Three requests: a long one, one with a window that has not filled, one that reads its window from a floor up.
Batch mixed_batch(at::ScalarType dtype, int64_t heads, int64_t dim, std::mt19937& random) {
  Batch batch(heads, dim, 37, dtype);
  batch.keys = {random_keys(130, 65, dim, dtype, random), random_keys(20, 10, dim, dtype, random),
                random_keys(90, 45, dim, dtype, random)};
  const auto choose = [&](int64_t count, int64_t visible) {
    std::vector<int32_t> all(static_cast<size_t>(visible));
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random);
    all.resize(std::min(all.size(), static_cast<size_t>(count)));
    std::sort(all.begin(), all.end());
    return all;
  };
  for (int64_t p = 118; p < 130; ++p) batch.add_row(0, p, choose(28, (p + 1) / 2));
  for (int64_t p = 0; p < 20; ++p) batch.add_row(1, p, choose(28, (p + 1) / 2));
  for (int64_t p = 80; p < 90; ++p) batch.add_row(2, p, choose(28, (p + 1) / 2), 75);
  batch.add_row(-1, 0, {});
  batch.q = normal({static_cast<int64_t>(batch.positions.size()), heads * dim}, random, dtype, 2);
  batch.finish(28, dim / 4, normal({heads}, random), random);
  return batch;
}

class Attention : public ::testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, Attention, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST_P(Attention, IsSoftmaxOverWindowSelectionAndSink) {
  constexpr unsigned kSeed = 91;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  for (const auto& [heads, dim] : std::vector<std::pair<int64_t, int64_t>>{{1, 16}, {3, 24}, {16, 64}}) {
    const Batch batch = mixed_batch(GetParam(), heads, dim, random);
    expect_close(batch.attend(), batch.expected(), tolerance_of(GetParam()));
  }
}

TEST_P(Attention, ARowDependsOnItselfAlone) {
  std::mt19937 random(92);
  const Batch batch = mixed_batch(GetParam(), 6, 32, random);
  expect_rows_independent(batch.q.size(0), 92, [&](const auto& rows) { return batch.choose(rows).attend(); });
}

TEST_P(Attention, ReadsNoCellButTheRowsOwnKeys) {
  constexpr unsigned kSeed = 93;
  std::mt19937 random(kSeed);
  const Batch whole = mixed_batch(GetParam(), 2, 16, random);
  const at::Tensor out = whole.attend();
  for (const size_t t : {0u, 11u, 12u, 31u, 33u}) {
    Batch one(2, 16, 37, GetParam());
    one.keys = whole.keys;
    one.add_row(whole.sequences[t], whole.positions[t], whole.selections[t], whole.starts[t]);
    one.finish(28, 4, whole.params.sink, random);  // only this row's keys are not NaN, in other pages than before
    one.params.rope = whole.choose({static_cast<int64_t>(t)}).params.rope;
    const auto row = static_cast<int64_t>(t);
    EXPECT_TRUE(
        same_bits(window_sparse_attention(whole.q.narrow(0, row, 1), one.rows, one.params), out.narrow(0, row, 1)))
        << "seed " << kSeed;
  }
}

// Queries of zero weigh all keys alike, so the output is their mean.
Batch mean_batch(int64_t position, int64_t window_size, float sink, at::ScalarType dtype,
                 std::vector<int32_t> selection = {}) {
  std::mt19937 random(0);
  Batch batch(1, 16, window_size, dtype);
  batch.keys = {{at::full({position + 1, 16}, 0.0, dtype), at::full({(position + 1) / 2, 16}, 0.0, dtype)}};
  batch.add_row(0, position, std::move(selection));
  batch.q = at::full({1, 16}, 0.0, dtype);
  batch.finish(4, 4, tensor_of<float>({sink}), random);
  return batch;
}

void set_window_key(Batch& batch, int64_t position, double value) {
  const int32_t page =
      batch.params.window.group.block_table[batch.slot_of(0)][position / Batch::kWindowPage].item<int32_t>();
  batch.params.window.cells[page * Batch::kWindowPage + position % Batch::kWindowPage].narrow(0, 0, 8).fill_(value);
}

double first_channel(const Batch& batch) { return doubles(batch.attend())[0]; }

TEST_P(Attention, TheKeyAtTheWindowsEdgeCountsAndTheNextDoesNot) {
  constexpr int64_t kWindow = 16;
  for (const int64_t position : {15, 16, 60}) {
    Batch batch = mean_batch(position, kWindow, -100, GetParam());
    set_window_key(batch, position - kWindow + 1, 16);
    if (position >= kWindow) set_window_key(batch, position - kWindow, kNotANumber);
    EXPECT_EQ(first_channel(batch), 1) << position;
    set_window_key(batch, position, 32);  // the row's own key counts too
    EXPECT_EQ(first_channel(batch), 3) << position;
  }
}

TEST_P(Attention, TheWindowFloorHidesOlderKeys) {
  Batch batch = mean_batch(60, 16, -100, GetParam());
  for (int64_t p = 45; p < 57; ++p) set_window_key(batch, p, kNotANumber);
  set_window_key(batch, 57, 8);
  batch.params.window.group.window_starts.fill_(57);
  EXPECT_EQ(first_channel(batch), 2);
}

TEST_P(Attention, TheSinkTakesItsShareAndGivesNothing) {
  Batch batch = mean_batch(60, 16, std::log(16.0f), GetParam());  // as heavy as the 16 keys together
  for (int64_t p = 45; p <= 60; ++p) set_window_key(batch, p, 4);
  EXPECT_NEAR(first_channel(batch), 2, 1e-6);
  batch.params.sink.fill_(200);  // beyond float32's exp; the keys vanish
  EXPECT_EQ(first_channel(batch), 0);
  batch.params.sink.fill_(-200);
  EXPECT_EQ(first_channel(batch), 4);
}

TEST_P(Attention, SelectedKeysShareTheWindowsSoftmax) {
  Batch batch = mean_batch(60, 14, -100, GetParam(), {3, 29});
  for (const int64_t c : {3, 29}) {
    const int32_t page =
        batch.params.compressed.group.block_table[batch.slot_of(0)][c / Batch::kCompressedPage].item<int32_t>();
    batch.params.compressed.cells[page * Batch::kCompressedPage + c % Batch::kCompressedPage].narrow(0, 0, 8).fill_(8);
  }
  EXPECT_EQ(first_channel(batch), 1);  // 2 of 14 + 2 keys
}

TEST_P(Attention, ALargeScoreTakesAll) {
  Batch batch = mean_batch(60, 16, 0, GetParam());
  batch.q.fill_(60);
  set_window_key(batch, 50, 60);
  EXPECT_NEAR(first_channel(batch), 60, 1e-4);
}

TEST_P(Attention, AnEmptySelectionIsNoSelection) {
  constexpr unsigned kSeed = 94;
  std::mt19937 random(kSeed);
  Batch batch = mixed_batch(GetParam(), 3, 16, random);
  batch.params.selection.fill_(-1);
  const at::Tensor out = batch.attend();
  batch.params.compressed = {};
  batch.params.selection = at::Tensor();
  EXPECT_TRUE(same_bits(batch.attend(), out)) << "seed " << kSeed;
}

TEST_P(Attention, ASelectionMayBeWiderThanItsEntries) {
  constexpr unsigned kSeed = 95;
  std::mt19937 random(kSeed);
  Batch batch = mixed_batch(GetParam(), 3, 16, random);
  const at::Tensor out = batch.attend();
  at::Tensor wide = at::full({batch.q.size(0), 100}, -1, at::kInt);
  wide.narrow(1, 0, 28).copy_(batch.params.selection);
  batch.params.selection = wide;
  EXPECT_TRUE(same_bits(batch.attend(), out)) << "seed " << kSeed;
}

TEST(WindowSparseAttention, SaysWhatDoesNotFit) {
  Batch batch = mean_batch(20, 16, 0, at::kFloat);
  batch.params.num_heads = 2;
  EXPECT_THROW(batch.attend(), std::logic_error);
}

}  // namespace
}  // namespace reprise
