#include "backends/select_positions.h"

#include <gtest/gtest.h>

#include <bit>
#include <stdexcept>

#include "kernel_testing.h"

namespace reprise {
namespace {

constexpr int64_t kPage = 4;
constexpr int64_t kEntries = 64;

// Index keys of some requests in shuffled pages. Integer queries, weights and keys make every score exact, so that ties
// are ties in any order of summing.
struct Scene {
  int64_t heads, dim, ratio;
  at::ScalarType dtype;
  std::vector<at::Tensor> keys;  // per request [groups, d_idx]; the rest of the cells is NaN
  std::vector<int64_t> positions;
  std::vector<int32_t> sequences;
  at::Tensor q, w;
  AttentionMetadata rows;
  IndexerParams params;

  Scene(int64_t heads, int64_t dim, int64_t ratio, at::ScalarType dtype)
      : heads(heads), dim(dim), ratio(ratio), dtype(dtype) {}

  void finish(std::mt19937& random) {
    std::vector<int32_t> order(static_cast<size_t>(kEntries) * keys.size());
    std::iota(order.begin(), order.end(), 1);
    std::shuffle(order.begin(), order.end(), random);
    const at::Tensor table = at::full({static_cast<int64_t>(keys.size()) + 1, kEntries}, 0, at::kInt);
    const PagedCells cache{nans({(static_cast<int64_t>(order.size()) + 1) * kPage, dim}, dtype), {table, {}}, kPage};
    std::vector<int32_t> slots;
    size_t next = 0;
    for (size_t s = 0; s < keys.size(); ++s) {
      const auto slot = static_cast<int64_t>(keys.size() - s);
      slots.push_back(static_cast<int32_t>(slot));
      for (int64_t c = 0; c < keys[s].size(0); ++c) {
        if (c % kPage == 0) table[slot][c / kPage].fill_(order[next++]);
        cache.cells[table[slot][c / kPage].item<int32_t>() * kPage + c % kPage].copy_(keys[s][c]);
      }
    }
    rows = {.positions = tensor_of(positions), .sequence_index = tensor_of(sequences), .state_slots = tensor_of(slots)};
    params = {.num_heads = heads,
              .head_dim = dim,
              .ratio = ratio,
              .keys = cache,
              .candidates_in = {},
              .candidate_block_size = 0};
  }

  int64_t visible(size_t t) const { return sequences[t] < 0 ? 0 : (positions[t] + 1) / ratio; }

  std::vector<double> scores(size_t t) const {
    if (visible(t) == 0) return {};
    std::vector<double> result;
    const auto N = static_cast<size_t>(heads), D = static_cast<size_t>(dim);
    const auto query = doubles(q[static_cast<int64_t>(t)]), weight = doubles(w[static_cast<int64_t>(t)]);
    const auto all_keys = doubles(keys[static_cast<size_t>(sequences[t])]);
    for (int64_t c = 0; c < visible(t); ++c) {
      const double* key = all_keys.data() + c * dim;
      double score = 0;
      for (size_t h = 0; h < N; ++h) {
        const double dot = std::inner_product(key, key + D, query.begin() + static_cast<int64_t>(h * D), 0.0);
        score += weight[h] * std::max(dot, 0.0);
      }
      result.push_back(score);
    }
    return result;
  }
};

// The indices of the best scores, ascending; of equal ones the lower.
std::vector<int32_t> best(const std::vector<double>& scores, size_t keep) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  order.resize(std::min(keep, order.size()));
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<int32_t> best_blocks(const std::vector<double>& scores, size_t block_size, size_t keep) {
  std::vector<double> blocks;
  for (size_t first = 0; first < scores.size(); first += block_size) {
    blocks.push_back(
        *std::max_element(scores.begin() + static_cast<int64_t>(first),
                          scores.begin() + static_cast<int64_t>(std::min(scores.size(), first + block_size))));
  }
  if (!blocks.empty()) blocks.back() = std::numeric_limits<double>::infinity();
  return best(blocks, keep);
}

std::vector<int32_t> padded(std::vector<int32_t> row, int64_t width) {
  row.resize(static_cast<size_t>(width), -1);
  return row;
}

std::vector<int32_t> ints(const at::Tensor& x) {
  const int32_t* data = x.const_data_ptr<int32_t>();
  return {data, data + x.numel()};
}

at::Tensor integers(at::IntArrayRef sizes, int64_t low, int64_t high, std::mt19937& random, at::ScalarType dtype) {
  at::Tensor x = at::empty(sizes, at::kFloat);
  std::uniform_int_distribution<int64_t> distribution(low, high);
  float* data = x.mutable_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) data[i] = static_cast<float>(distribution(random));
  return x.to(dtype);
}

// Two requests, the rows of each from the first position on; few distinct scores, many of them zero.
Scene crowded_scene(at::ScalarType dtype, int64_t ratio, std::mt19937& random) {
  Scene scene(5, 16, ratio, dtype);
  scene.keys = {integers({200 / ratio, 16}, -1, 1, random, dtype), integers({37 / ratio, 16}, -1, 1, random, dtype)};
  for (int64_t p = 0; p < 200; p += 7) scene.positions.push_back(p), scene.sequences.push_back(0);
  scene.positions.push_back(199), scene.sequences.push_back(0);
  for (int64_t p = 0; p < 37; ++p) scene.positions.push_back(p), scene.sequences.push_back(1);
  scene.positions.push_back(0), scene.sequences.push_back(-1);
  const auto rows = static_cast<int64_t>(scene.positions.size());
  scene.q = integers({rows, 5 * 16}, -1, 1, random, dtype);
  scene.w = integers({rows, 5}, -1, 1, random, at::kFloat);
  scene.finish(random);
  return scene;
}

at::Tensor selection_of(const Scene& scene, int64_t topk) {
  at::Tensor selection = at::full({scene.q.size(0), topk}, -7, at::kInt);
  select_compressed(scene.q, scene.w, scene.rows, scene.params, {selection, {}});
  return selection;
}

class Indexer : public ::testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, Indexer, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST_P(Indexer, KeepsTheBestVisiblePositionsAndOfEqualOnesTheLower) {
  constexpr unsigned kSeed = 101;
  std::mt19937 random(kSeed);
  for (const int64_t ratio : {1, 2, 3}) {
    const Scene scene = crowded_scene(GetParam(), ratio, random);
    for (const int64_t topk : {1, 8, 24, 300}) {
      const at::Tensor selection = selection_of(scene, topk);
      for (size_t t = 0; t < scene.positions.size(); ++t) {
        ASSERT_EQ(ints(selection[static_cast<int64_t>(t)]),
                  padded(best(scene.scores(t), static_cast<size_t>(topk)), topk))
            << "position " << scene.positions[t] << ", ratio " << ratio << ", top " << topk << ", seed " << kSeed;
      }
    }
  }
}

// One head, one channel that matters: the score of a position is its key.
Scene scores_scene(const std::vector<float>& scores, int64_t position, int64_t ratio, at::ScalarType dtype) {
  std::mt19937 random(0);
  Scene scene(1, 16, ratio, dtype);
  scene.keys = {at::full({static_cast<int64_t>(scores.size()), 16}, 0.0, dtype)};
  scene.keys[0].select(1, 3).copy_(tensor_of(scores));
  scene.positions = {position};
  scene.sequences = {0};
  scene.q = at::full({1, 16}, 1.0, dtype);
  scene.w = at::full({1, 1}, 1.0, at::kFloat);
  scene.finish(random);
  return scene;
}

using Ints = std::vector<int32_t>;

TEST_P(Indexer, AGroupIsVisibleFromItsLastTokenOn) {
  const std::vector<float> scores{1, 2, 3, 4, 5};
  EXPECT_EQ(ints(selection_of(scores_scene(scores, 0, 2, GetParam()), 2)), (Ints{-1, -1}));
  EXPECT_EQ(ints(selection_of(scores_scene(scores, 1, 2, GetParam()), 2)), (Ints{0, -1}));
  EXPECT_EQ(ints(selection_of(scores_scene(scores, 2, 2, GetParam()), 2)), (Ints{0, -1}));
  EXPECT_EQ(ints(selection_of(scores_scene(scores, 6, 2, GetParam()), 2)), (Ints{1, 2}));
  EXPECT_EQ(ints(selection_of(scores_scene(scores, 7, 2, GetParam()), 2)), (Ints{2, 3}));
  EXPECT_EQ(ints(selection_of(scores_scene(scores, 10, 3, GetParam()), 2)), (Ints{1, 2}));
  EXPECT_EQ(ints(selection_of(scores_scene(scores, 2, 1, GetParam()), 4)), (Ints{0, 1, 2, -1}));
}

TEST_P(Indexer, TiesGoToTheLowerPosition) {
  EXPECT_EQ(ints(selection_of(scores_scene({2, 5, 2, 5, 2, 5, 2}, 6, 1, GetParam()), 2)), (Ints{1, 3}));
  EXPECT_EQ(ints(selection_of(scores_scene({2, 5, 2, 5, 2, 5, 2}, 6, 1, GetParam()), 5)), (Ints{0, 1, 2, 3, 5}));
  // relu makes negative products equal to zero
  EXPECT_EQ(ints(selection_of(scores_scene({-3, -1, 0, -2, 4, -1}, 5, 1, GetParam()), 3)), (Ints{0, 1, 4}));
}

TEST_P(Indexer, ANegativeWeightMakesAHitWorseThanNone) {
  Scene scene = scores_scene({3, 0, 2, -5, 1}, 4, 1, GetParam());
  scene.w.fill_(-1);
  EXPECT_EQ(ints(selection_of(scene, 3)), (Ints{1, 3, 4}));
}

TEST_P(Indexer, PublishesTheBestBlocksAndAlwaysTheLatest) {
  constexpr unsigned kSeed = 102;
  std::mt19937 random(kSeed);
  for (const int64_t block_size : {1, 4, 8}) {
    for (const int64_t blocks : {1, 3, 100}) {
      Scene scene = crowded_scene(GetParam(), 2, random);
      scene.params.candidate_block_size = block_size;
      at::Tensor selection = at::full({scene.q.size(0), 8}, -7, at::kInt);
      at::Tensor candidates = at::full({scene.q.size(0), blocks}, -7, at::kInt);
      select_compressed(scene.q, scene.w, scene.rows, scene.params, {selection, candidates});
      EXPECT_TRUE(same_bits(selection, selection_of(scene, 8)))
          << "its own selection is not restricted, seed " << kSeed;
      for (size_t t = 0; t < scene.positions.size(); ++t) {
        ASSERT_EQ(
            ints(candidates[static_cast<int64_t>(t)]),
            padded(best_blocks(scene.scores(t), static_cast<size_t>(block_size), static_cast<size_t>(blocks)), blocks))
            << "position " << scene.positions[t] << ", " << blocks << " blocks of " << block_size << ", seed " << kSeed;
      }
    }
  }
}

Ints candidates_of(Scene scene, int64_t block_size, int64_t blocks) {
  scene.params.candidate_block_size = block_size;
  at::Tensor selection = at::full({1, 1}, -7, at::kInt);
  at::Tensor candidates = at::full({1, blocks}, -7, at::kInt);
  select_compressed(scene.q, scene.w, scene.rows, scene.params, {selection, candidates});
  return ints(candidates);
}

TEST_P(Indexer, CandidateBlocksByHand) {
  // Blocks of 2: best 7, 9, 5, 9, and the last one holds a single visible position.
  const std::vector<float> scores{7, 1, 0, 9, 5, 2, 9, 9, 0};
  EXPECT_EQ(candidates_of(scores_scene(scores, 8, 1, GetParam()), 2, 3), (Ints{1, 3, 4}));  // the latest takes a place
  EXPECT_EQ(candidates_of(scores_scene(scores, 8, 1, GetParam()), 2, 2), (Ints{1, 4}));     // equal blocks: the lower
  EXPECT_EQ(candidates_of(scores_scene(scores, 8, 1, GetParam()), 2, 1), (Ints{4}));
  EXPECT_EQ(candidates_of(scores_scene(scores, 6, 1, GetParam()), 2, 2),
            (Ints{1, 3}));  // position 7 is not visible yet
  EXPECT_EQ(candidates_of(scores_scene(scores, 0, 2, GetParam()), 2, 2), (Ints{-1, -1}));
  EXPECT_EQ(candidates_of(scores_scene(scores, 8, 1, GetParam()), 2, 6), (Ints{0, 1, 2, 3, 4, -1}));
}

TEST_P(Indexer, ChoosesAmongTheCandidatesOnly) {
  constexpr unsigned kSeed = 103;
  std::mt19937 random(kSeed);
  Scene scene = crowded_scene(GetParam(), 2, random);
  constexpr int64_t kBlock = 4, kBlocks = 6;
  scene.params.candidate_block_size = kBlock;
  at::Tensor first = at::full({scene.q.size(0), 8}, -7, at::kInt);
  at::Tensor candidates = at::full({scene.q.size(0), kBlocks}, -7, at::kInt);
  select_compressed(scene.q, scene.w, scene.rows, scene.params, {first, candidates});
  // A later source has queries of its own.
  scene.q = integers(scene.q.sizes(), -1, 1, random, GetParam());
  scene.w = integers(scene.w.sizes(), -1, 1, random, at::kFloat);
  scene.params.candidates_in = candidates;
  for (const int64_t topk : {3, 8, 40}) {
    const at::Tensor selection = selection_of(scene, topk);
    for (size_t t = 0; t < scene.positions.size(); ++t) {
      const auto scores = scene.scores(t);
      const auto blocks = ints(candidates[static_cast<int64_t>(t)]);
      std::vector<double> allowed;
      Ints places;
      for (size_t c = 0; c < scores.size(); ++c) {
        if (std::count(blocks.begin(), blocks.end(), static_cast<int32_t>(c) / kBlock) == 0) continue;
        allowed.push_back(scores[c]);
        places.push_back(static_cast<int32_t>(c));
      }
      Ints wanted;
      for (const int32_t i : best(allowed, static_cast<size_t>(topk))) wanted.push_back(places[static_cast<size_t>(i)]);
      ASSERT_EQ(ints(selection[static_cast<int64_t>(t)]), padded(wanted, topk))
          << "position " << scene.positions[t] << ", seed " << kSeed;
    }
  }
}

TEST_P(Indexer, NoCellOutsideTheCandidatesIsRead) {
  Scene scene = scores_scene({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 9, 1, GetParam());
  const int32_t page = scene.params.keys.group.block_table[1][1].item<int32_t>();
  scene.params.keys.cells.narrow(0, page * kPage, kPage).fill_(kNotANumber);  // positions 4..7
  scene.params.candidate_block_size = 2;
  scene.params.candidates_in = tensor_of<int32_t>({0, 1, 4, -1}).view({1, 4});
  EXPECT_EQ(ints(selection_of(scene, 3)), (Ints{3, 8, 9}));
}

TEST_P(Indexer, ARowDependsOnItselfAlone) {
  std::mt19937 random(104);
  Scene scene(8, 32, 2, GetParam());
  scene.keys = {normal({150, 32}, random, GetParam()), normal({90, 32}, random, GetParam())};
  for (int64_t p = 290; p < 300; ++p) scene.positions.push_back(p), scene.sequences.push_back(0);
  for (int64_t p = 150; p < 180; ++p) scene.positions.push_back(p), scene.sequences.push_back(1);
  scene.q = normal({40, 8 * 32}, random, GetParam());
  scene.w = normal({40, 8}, random);
  scene.finish(random);
  scene.params.candidate_block_size = 8;
  for (const bool of_candidates : {false, true}) {
    expect_rows_independent(40, 104, [&](const std::vector<int64_t>& chosen) {
      AttentionMetadata rows = scene.rows;
      rows.positions = rows_of(rows.positions, chosen);
      rows.sequence_index = rows_of(rows.sequence_index, chosen);
      at::Tensor selection = at::full({static_cast<int64_t>(chosen.size()), 16}, -7, at::kInt);
      at::Tensor candidates = at::full({static_cast<int64_t>(chosen.size()), 5}, -7, at::kInt);
      select_compressed(rows_of(scene.q, chosen), rows_of(scene.w, chosen), rows, scene.params,
                        {selection, candidates});
      return of_candidates ? candidates : selection;
    });
  }
}

// A broken activation must not become a read outside the scores: infinity times relu's zeros is NaN, beside true
// infinities.
TEST_P(Indexer, NotANumberSelectsSomethingValid) {
  std::mt19937 random(105);
  Scene scene = crowded_scene(GetParam(), 1, random);
  const float largest_bits = std::bit_cast<float>(0x7FFFFFFFu);  // a NaN that as an integer stands above all others
  for (const float broken : {largest_bits, std::numeric_limits<float>::infinity()}) {
    std::fill_n(scene.w.mutable_data_ptr<float>(), scene.w.numel(), broken);
    const auto chosen = ints(selection_of(scene, 8));
    for (size_t t = 0; t < scene.positions.size(); ++t) {
      const Ints row(chosen.begin() + static_cast<int64_t>(t) * 8, chosen.begin() + static_cast<int64_t>(t + 1) * 8);
      for (size_t i = 0; i < 8; ++i) {
        ASSERT_EQ(row[i] >= 0, static_cast<int64_t>(i) < scene.visible(t)) << "row " << t << ", entry " << i;
        ASSERT_LT(row[i], scene.visible(t));
        ASSERT_TRUE(i == 0 || row[i] == -1 || row[i] > row[i - 1]);
      }
    }
  }
  // A NaN score is the best there is: position 2 wins over true scores, and its NaN shows in what attention reads.
  scene = scores_scene({0, 3, std::numeric_limits<float>::quiet_NaN(), 0, 1}, 4, 1, GetParam());
  EXPECT_EQ(ints(selection_of(scene, 2)), (Ints{1, 2}));
}

// Scaled only after the sum, both scores would be infinite and equal.
TEST_P(Indexer, ScalesTheHeadWeightsBeforeTheSum) {
  Scene scene = scores_scene({2, 3}, 1, 1, GetParam());
  scene.w.fill_(3e38);
  scene.params.head_scale = 0.01f;
  EXPECT_EQ(ints(selection_of(scene, 1)), (Ints{1}));
}

TEST(SelectCompressed, SaysWhatDoesNotFit) {
  Scene scene = scores_scene({1, 2}, 1, 1, at::kFloat);
  EXPECT_THROW(select_compressed(scene.q, scene.w, scene.rows, scene.params, {at::full({0, 4}, 0, at::kInt), {}}),
               std::logic_error);
}

}  // namespace
}  // namespace reprise
