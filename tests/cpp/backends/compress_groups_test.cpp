#include "backends/compress_groups.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "kernel_testing.h"

namespace reprise {
namespace {

constexpr int64_t kWidth = 20;
constexpr double kUntouched = 99;

// All tokens of a request.
struct Request {
  at::Tensor v, g;  // [length, D]
  int32_t slot = 0;
  int64_t done = 0;
};

// The softmax-weighted sums of the complete groups, [groups, D], in double.
std::vector<double> expected(const Request& request, int64_t ratio) {
  const auto v = doubles(request.v), g = doubles(request.g);
  const auto n = static_cast<size_t>(request.v.size(1)), r = static_cast<size_t>(ratio);
  std::vector<double> groups;
  for (size_t first = 0; first + r <= v.size() / n; first += r) {
    for (size_t i = 0; i < n; ++i) {
      double total = 0, sum = 0;
      for (size_t j = 0; j < r; ++j) {
        total += std::exp(g[(first + j) * n + i]);
        sum += std::exp(g[(first + j) * n + i]) * v[(first + j) * n + i];
      }
      groups.push_back(sum / total);
    }
  }
  return groups;
}

struct Chunk {
  size_t request;
  int64_t rows;
};

// Runs one batch of chunks, with `padding` rows behind them, and puts the outputs of group-completing rows into
// `groups`.
void run_batch(std::vector<Request>& requests, const std::vector<Chunk>& chunks, int64_t padding, int64_t ratio,
               at::Tensor& partial, std::vector<at::Tensor>& groups) {
  std::vector<int64_t> positions, starts{0};
  std::vector<int32_t> sequences, slots;
  int64_t total = padding;
  for (const Chunk& chunk : chunks) total += chunk.rows;
  at::Tensor v = nans({total, kWidth}, at::kFloat), g = nans({total, kWidth}, at::kFloat);
  for (const Chunk& chunk : chunks) {
    Request& request = requests[chunk.request];
    const auto first = static_cast<int64_t>(positions.size());
    v.narrow(0, first, chunk.rows).copy_(request.v.narrow(0, request.done, chunk.rows));
    g.narrow(0, first, chunk.rows).copy_(request.g.narrow(0, request.done, chunk.rows));
    for (int64_t i = 0; i < chunk.rows; ++i) {
      positions.push_back(request.done + i);
      sequences.push_back(static_cast<int32_t>(slots.size()));
    }
    slots.push_back(request.slot);
    starts.push_back(static_cast<int64_t>(positions.size()));
  }
  for (int64_t i = 0; i < padding; ++i) positions.push_back(ratio - 1), sequences.push_back(-1);
  at::Tensor out = at::full({total, kWidth}, kUntouched, at::kFloat);
  compress_groups(v, g, {tensor_of(positions), tensor_of(sequences), tensor_of(starts), tensor_of(slots)}, partial,
                  out);
  for (int64_t t = 0; t < total; ++t) {
    const auto sequence = sequences[static_cast<size_t>(t)];
    const int64_t position = positions[static_cast<size_t>(t)];
    if (sequence < 0 || (position + 1) % ratio != 0) {
      EXPECT_EQ(doubles(out[t]), std::vector<double>(kWidth, kUntouched)) << "row " << t << " completes no group";
    } else {
      groups[chunks[static_cast<size_t>(sequence)].request][position / ratio].copy_(out[t]);
    }
  }
  for (const Chunk& chunk : chunks) requests[chunk.request].done += chunk.rows;
}

std::vector<Request> random_requests(std::mt19937& random) {
  std::vector<Request> requests;
  for (const auto& [length, slot] : std::vector<std::pair<int64_t, int32_t>>{{29, 3}, {12, 0}, {1, 2}, {40, 5}}) {
    requests.push_back({normal({length, kWidth}, random), normal({length, kWidth}, random, at::kFloat, 3), slot});
  }
  return requests;
}

std::vector<at::Tensor> no_groups(const std::vector<Request>& requests, int64_t ratio) {
  std::vector<at::Tensor> groups;
  for (const Request& request : requests) groups.push_back(nans({request.v.size(0) / ratio, kWidth}, at::kFloat));
  return groups;
}

// Each request in one chunk, all in one batch.
std::vector<at::Tensor> groups_at_once(std::vector<Request> requests, int64_t ratio) {
  at::Tensor partial = nans({6, ratio, 2, kWidth}, at::kFloat);
  auto groups = no_groups(requests, ratio);
  std::vector<Chunk> chunks;
  for (size_t i = 0; i < requests.size(); ++i) chunks.push_back({i, requests[i].v.size(0)});
  run_batch(requests, chunks, 3, ratio, partial, groups);
  return groups;
}

TEST(CompressGroups, ByHand) {
  // Equal gates: the mean. Gates ln 3 and 0: three quarters and one quarter. A gate far above the other: its value
  // alone.
  const at::Tensor v = tensor_of<float>({4, 4, 4, 8, 8, 8}).view({2, 3});
  const at::Tensor g = tensor_of<float>({500, std::log(3.0f), 0, 500, 0, 300}).view({2, 3});
  at::Tensor partial = nans({1, 2, 2, 3}, at::kFloat), out = nans({2, 3}, at::kFloat);
  compress_groups(
      v, g,
      {tensor_of<int64_t>({6, 7}), tensor_of<int32_t>({0, 0}), tensor_of<int64_t>({0, 2}), tensor_of<int32_t>({0})},
      partial, out);
  expect_close(out[1], {6, 5, 8}, kFloatTolerance);
  EXPECT_TRUE(partial.isnan().all().item<bool>()) << "no incomplete group, no state";
}

TEST(CompressGroups, AreSoftmaxWeightedSums) {
  constexpr unsigned kSeed = 111;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  const auto requests = random_requests(random);
  for (const int64_t ratio : {2, 3, 4}) {
    const auto groups = groups_at_once(requests, ratio);
    for (size_t i = 0; i < requests.size(); ++i) expect_close(groups[i], expected(requests[i], ratio), kFloatTolerance);
  }
}

TEST(CompressGroups, HaveTheSameBitsHoweverTheTokensAreCut) {
  const unsigned seed = 112;
  std::mt19937 random(seed);
  const auto requests = random_requests(random);
  for (const int64_t ratio : {2, 3, 4}) {
    const auto wanted = groups_at_once(requests, ratio);
    for (int trial = 0; trial < 12; ++trial) {
      auto running = requests;
      auto groups = no_groups(requests, ratio);
      at::Tensor partial = nans({6, ratio, 2, kWidth}, at::kFloat);
      while (true) {
        std::vector<Chunk> chunks;  // any of the requests, in any order, 1 to 6 tokens each
        for (size_t i = 0; i < running.size(); ++i) {
          const int64_t left = running[i].v.size(0) - running[i].done;
          if (left > 0 && random() % 3 != 0) chunks.push_back({i, std::min<int64_t>(left, 1 + random() % 6)});
        }
        std::shuffle(chunks.begin(), chunks.end(), random);
        run_batch(running, chunks, static_cast<int64_t>(random() % 3), ratio, partial, groups);
        if (std::all_of(running.begin(), running.end(), [](const Request& r) { return r.done == r.v.size(0); })) break;
      }
      for (size_t i = 0; i < requests.size(); ++i) {
        ASSERT_TRUE(same_bits(groups[i], wanted[i]))
            << "request " << i << ", ratio " << ratio << ", trial " << trial << ", seed " << seed;
      }
    }
  }
}

TEST(CompressGroups, KeepTheTrailingTokensInTheirOwnCellOnly) {
  std::mt19937 random(113);
  std::vector<Request> requests{{normal({10, kWidth}, random), normal({10, kWidth}, random), 4}};
  at::Tensor partial = nans({6, 4, 2, kWidth}, at::kFloat);
  auto groups = no_groups(requests, 4);
  run_batch(requests, {{0, 10}}, 2, 4, partial, groups);
  for (int64_t slot = 0; slot < 6; ++slot) {
    for (int64_t place = 0; place < 4; ++place) {
      if (slot == 4 && place < 2) {  // positions 8 and 9
        EXPECT_TRUE(same_bits(partial[slot][place][0], requests[0].v[8 + place])) << place;
        EXPECT_TRUE(same_bits(partial[slot][place][1], requests[0].g[8 + place])) << place;
      } else {
        EXPECT_TRUE(partial[slot][place].isnan().all().item<bool>()) << slot << ", " << place;
      }
    }
  }
}

TEST(CompressGroups, SayWhatDoesNotFit) {
  const at::Tensor v = at::full({2, 8}, 0.0, at::kFloat);
  at::Tensor out = v.clone();
  const AttentionMetadata rows{tensor_of<int64_t>({0, 1}), tensor_of<int32_t>({0, 0}), tensor_of<int64_t>({0, 2}),
                               tensor_of<int32_t>({0})};
  const at::Tensor other_width = at::full({1, 2, 2, 4}, 0.0, at::kFloat);
  EXPECT_THROW(compress_groups(v, v, rows, other_width, out), std::logic_error);
}

}  // namespace
}  // namespace reprise
