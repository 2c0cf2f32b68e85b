#include "reprise/decoder_replay_layers.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace reprise {
namespace {

using States = DecoderReplayLayers::States;

States identity(const States& inputs) { return inputs; }

at::Tensor indices(const std::vector<int64_t>& rows, at::ScalarType dtype = at::kLong) {
  return at::tensor(rows, at::kLong).to(dtype);
}

// [num_rows, ...] values that tell every element from every other (up to the dtype's range).
at::Tensor batch_of(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return at::arange(1, count + 1, at::kLong).remainder(251).reshape(sizes).to(dtype);
}

// What index_select, identity layers and index_copy_ give.
at::Tensor trimmed_by_hand(const at::Tensor& batch, const at::Tensor& rows) {
  const at::Tensor index = rows.to(at::kLong);
  return at::zeros_like(batch, batch.options(), at::MemoryFormat::Contiguous)
      .index_copy_(0, index, batch.index_select(0, index));
}

TEST(DecoderReplayLayersTest, LayersSeeTheKeptRowsAndTheirOutputsReturnToBatchRows) {
  States seen;
  DecoderReplayLayers layers(128,
                             [&](const States& inputs) {
                               seen = inputs;
                               return States{inputs[0].add(1), inputs[2]};
                             },
                             {});
  layers.rows = indices({1, 2, 4});
  const at::Tensor hidden = at::tensor({10.0f, 11.0f, 12.0f, 13.0f, 14.0f}).unsqueeze(1);
  const States outputs = layers({hidden, at::Tensor(), at::arange(5)});
  EXPECT_TRUE(at::equal(seen[0].squeeze(1), at::tensor({11.0f, 12.0f, 14.0f})));
  EXPECT_FALSE(seen[1].defined());
  EXPECT_TRUE(at::equal(seen[2], at::tensor({1, 2, 4}, at::kLong)));
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_TRUE(at::equal(outputs[0].squeeze(1), at::tensor({0.0f, 12.0f, 13.0f, 0.0f, 15.0f})));
  EXPECT_TRUE(at::equal(outputs[1], at::tensor({0, 1, 2, 0, 4}, at::kLong)));
}

TEST(DecoderReplayLayersTest, WithoutRowsTheWholeBatchRunsUnderTheCurrentContext) {
  const auto batch_context = std::make_shared<ForwardContext>();
  ForwardContext* seen = nullptr;
  DecoderReplayLayers layers(128,
                             [&](const States& inputs) {
                               seen = &get_forward_context();
                               return inputs;
                             },
                             {});
  layers.forward_context = std::make_shared<ForwardContext>();
  const ScopedForwardContext scope(batch_context);
  const at::Tensor hidden = batch_of({6, 3});
  EXPECT_TRUE(layers({hidden})[0].is_same(hidden));
  EXPECT_EQ(seen, batch_context.get());
}

TEST(DecoderReplayLayersTest, RunsUnderItsOwnContextAndRestoresTheOuterOneAlsoAfterAThrow) {
  const auto batch_context = std::make_shared<ForwardContext>();
  const auto replay_context = std::make_shared<ForwardContext>();
  ForwardContext* seen = nullptr;
  bool fail = false;
  DecoderReplayLayers layers(128,
                             [&](const States& inputs) {
                               seen = &get_forward_context();
                               if (fail) throw std::runtime_error("from a layer");
                               return inputs;
                             },
                             {});
  layers.rows = indices({0});
  layers.forward_context = replay_context;
  const ScopedForwardContext scope(batch_context);
  layers({batch_of({2, 2})});
  EXPECT_EQ(seen, replay_context.get());
  EXPECT_EQ(&get_forward_context(), batch_context.get());
  fail = true;
  EXPECT_THROW(layers({batch_of({2, 2})}), std::runtime_error);
  EXPECT_EQ(&get_forward_context(), batch_context.get());
}

TEST(DecoderReplayLayersTest, EqualsTheOperatorsForEveryDtypeShapeAndOrder) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const at::ScalarType dtypes[] = {at::kFloat, at::kBFloat16, at::kHalf, at::kInt, at::kLong, at::kBool, at::kByte};
  for (int round = 0; round < 60; ++round) {
    const int64_t num_rows = 1 + static_cast<int64_t>(random() % 40);
    const auto num_kept = static_cast<int64_t>(random() % 50);
    std::vector<int64_t> picked;
    for (int64_t i = 0; i < num_kept; ++i) picked.push_back(static_cast<int64_t>(random() % num_rows));
    if (random() % 2 == 0) std::sort(picked.begin(), picked.end());
    const at::Tensor rows = indices(picked, random() % 2 == 0 ? at::kInt : at::kLong);
    const at::ScalarType dtype = dtypes[random() % std::size(dtypes)];
    const at::Tensor wide = batch_of({num_rows, 4, 6}, dtype);
    const States inputs = {
        wide,
        wide.select(1, 2),                                        // rows apart
        wide.transpose(1, 2),                                     // rows not contiguous
        wide.flip(0).select(2, 0).select(1, 1),                   // one value a row
        wide.narrow(2, 0, 0),                                     // no value a row
        wide.select(0, 0).unsqueeze(0).expand({num_rows, 4, 6}),  // every row the same memory
    };
    DecoderReplayLayers layers(8, identity, {});
    layers.rows = rows;
    const States scattered = layers(inputs);
    const States kept = layers.run_kept(inputs);
    for (size_t i = 0; i < inputs.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "round " << round << " input " << i);
      EXPECT_TRUE(at::equal(scattered[i], trimmed_by_hand(inputs[i], rows)));
      EXPECT_TRUE(scattered[i].is_contiguous());
      EXPECT_TRUE(at::equal(kept[i], inputs[i].index_select(0, rows)));
    }
  }
}

TEST(DecoderReplayLayersTest, ARepeatedRowHoldsItsLastOutput) {
  DecoderReplayLayers layers(8, [](const States& inputs) { return States{at::arange(inputs[0].size(0)).add(1)}; }, {});
  layers.rows = indices({2, 0, 2, 0, 2});
  EXPECT_TRUE(at::equal(layers({batch_of({4, 1})})[0], at::tensor({4, 0, 5, 0}, at::kLong)));
}

TEST(DecoderReplayLayersTest, OutputsBeyondThePageThresholdAreZeroWhereTrimmed) {
  const int64_t num_rows = 4096;
  const at::Tensor hidden = at::full({num_rows, 512}, 3.0f);  // 8 MiB
  DecoderReplayLayers layers(8, identity, {});
  std::vector<int64_t> picked;
  for (int64_t row = 100; row < 2500; ++row) picked.push_back(row);
  picked.push_back(4095);
  layers.rows = indices(picked);
  for (int repeat = 0; repeat < 3; ++repeat) {  // the memory of a dropped output may come back
    const at::Tensor output = layers({hidden})[0];
    EXPECT_TRUE(at::equal(output, trimmed_by_hand(hidden, layers.rows)));
    output.fill_(7);
  }
}

// More bytes than are copied through the cache, from dense rows and from rows with gaps between them.
TEST(DecoderReplayLayersTest, RowsBeyondTheCacheAreGatheredAlike) {
  DecoderReplayLayers layers(128, identity, {});
  layers.rows = at::cat({at::arange(3, 703), at::arange(800, 1300)});
  const at::Tensor wide = batch_of({1300, 5000});
  for (const at::Tensor& batch : {wide, wide.narrow(1, 13, 4001)}) {
    const at::Tensor kept = layers.run_kept({batch})[0];
    ASSERT_GT(kept.nbytes(), size_t{17} << 20);
    EXPECT_TRUE(at::equal(kept, batch.index_select(0, layers.rows)));
  }
}

TEST(DecoderReplayLayersTest, OutputsAndKeptInputsAreNeverOverwrittenByLaterCalls) {
  States stashed;
  DecoderReplayLayers layers(8,
                             [&](const States& inputs) {
                               stashed.push_back(inputs[0]);
                               return States{inputs[0]};
                             },
                             {});
  layers.rows = indices({1, 3});
  const at::Tensor first = layers({at::full({4, 2}, 1.0f)})[0];
  const at::Tensor second = layers({at::full({4, 2}, 2.0f)})[0];
  EXPECT_TRUE(at::equal(stashed[0], at::full({2, 2}, 1.0f)));
  EXPECT_TRUE(at::equal(stashed[1], at::full({2, 2}, 2.0f)));
  EXPECT_EQ(first.sum().item<float>(), 4.0f);
  EXPECT_EQ(second.sum().item<float>(), 8.0f);
  stashed[1].fill_(9);  // layers may change their inputs: neither the batch nor an output follows
  EXPECT_EQ(second.sum().item<float>(), 8.0f);
}

TEST(DecoderReplayLayersTest, LayersMayChangeTheirInputsInPlace) {
  DecoderReplayLayers layers(8, [](const States& inputs) { return States{inputs[0].mul_(-1)}; }, {});
  layers.rows = indices({0, 1});
  const at::Tensor hidden = at::full({3, 1}, 5.0f);
  EXPECT_TRUE(at::equal(layers({hidden})[0].squeeze(1), at::tensor({-5.0f, -5.0f, 0.0f})));
  EXPECT_TRUE(at::equal(hidden, at::full({3, 1}, 5.0f)));
}

TEST(DecoderReplayLayersTest, RowBuffersAreCompactedInPlaceForAnyOrderBeforeTheLayersRun) {
  for (const std::vector<int64_t>& picked :
       std::vector<std::vector<int64_t>>{{0, 1, 2}, {2, 3, 4}, {4, 3, 2, 1, 0}, {1, 1, 0}, {3, 0, 4, 2}, {}}) {
    const at::Tensor buffer = batch_of({5, 3}, at::kInt);
    const at::Tensor before = buffer.clone();
    at::Tensor seen;
    DecoderReplayLayers layers(8,
                               [&](const States& inputs) {
                                 seen = buffer.clone();
                                 return inputs;
                               },
                               {buffer});
    layers.rows = indices(picked);
    layers({batch_of({5, 2})});
    const auto n = static_cast<int64_t>(picked.size());
    EXPECT_TRUE(at::equal(buffer.narrow(0, 0, n), before.index_select(0, layers.rows)));
    EXPECT_TRUE(at::equal(buffer.narrow(0, n, 5 - n), before.narrow(0, n, 5 - n)));
    EXPECT_TRUE(at::equal(seen, buffer));
  }
}

TEST(DecoderReplayLayersTest, BadRowsAreRefusedBeforeAnythingIsWritten) {
  const at::Tensor buffer = batch_of({5, 2});
  const at::Tensor before = buffer.clone();
  bool ran = false;
  DecoderReplayLayers layers(8,
                             [&](const States& inputs) {
                               ran = true;
                               return inputs;
                             },
                             {buffer});
  const at::Tensor hidden = batch_of({5, 2});
  for (const int64_t bad : {int64_t{5}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    layers.rows = indices({3, bad, 1});
    EXPECT_THROW(layers({hidden}), std::out_of_range) << bad;
    EXPECT_THROW(layers.run_kept({hidden}), std::out_of_range) << bad;
  }
  layers.rows = indices({INT64_MAX, INT64_MIN});
  EXPECT_THROW(layers({hidden}), std::out_of_range);
  layers.rows = indices({4});
  EXPECT_THROW(layers({hidden, batch_of({4, 1})}), std::out_of_range);  // a state with fewer rows
  layers.rows = indices({0, 0, 0, 1, 1, 1});
  EXPECT_THROW(layers({hidden}), std::invalid_argument);  // more rows than the row buffer holds
  layers.rows = at::tensor({1.0f});
  EXPECT_THROW(layers({hidden}), std::invalid_argument);
  layers.rows = indices({1}).unsqueeze(0);
  EXPECT_THROW(layers({hidden}), std::invalid_argument);
  EXPECT_FALSE(ran);
  EXPECT_TRUE(at::equal(buffer, before));
}

TEST(DecoderReplayLayersTest, OutputsMustHaveOneRowPerKeptRow) {
  DecoderReplayLayers layers(8, [](const States& inputs) { return States{inputs[0].narrow(0, 0, 1)}; }, {});
  layers.rows = indices({0, 1});
  EXPECT_THROW(layers({batch_of({3, 2})}), std::invalid_argument);
}

TEST(DecoderReplayLayersTest, RunKeptLetsTheLayersKeepFewerRowsStill) {
  DecoderReplayLayers layers(8, [](const States& inputs) { return States{inputs[0].narrow(0, 1, 1)}; }, {});
  layers.rows = indices({0, 2});
  EXPECT_TRUE(at::equal(layers.run_kept({batch_of({3, 2})})[0], at::tensor({5.0f, 6.0f}).unsqueeze(0)));
}

TEST(DecoderReplayLayersTest, RunKeptPassesViewsForOneRunOfRows) {
  States seen;
  DecoderReplayLayers layers(8,
                             [&](const States& inputs) {
                               seen = inputs;
                               return inputs;
                             },
                             {});
  const at::Tensor hidden = batch_of({6, 2});
  layers.rows = indices({2, 3, 4});
  EXPECT_TRUE(at::equal(layers.run_kept({hidden})[0], hidden.narrow(0, 2, 3)));
  EXPECT_EQ(seen[0].const_data_ptr(), hidden.narrow(0, 2, 3).const_data_ptr());
  layers.rows = indices({2, 4});
  EXPECT_TRUE(at::equal(layers.run_kept({hidden})[0], hidden.index_select(0, layers.rows)));
  EXPECT_FALSE(seen[0].is_alias_of(hidden));
}

TEST(DecoderReplayLayersTest, NestedReplaysOfOneObjectKeepTheirInputsApart) {
  DecoderReplayLayers* self = nullptr;
  int depth = 0;
  DecoderReplayLayers layers(8,
                             [&](const States& inputs) {
                               const at::Tensor before = inputs[0].clone();
                               if (depth++ == 0) {
                                 const at::Tensor outer_rows = std::exchange(self->rows, indices({1}));
                                 const at::Tensor inner = (*self)({inputs[0]})[0];
                                 EXPECT_TRUE(at::equal(inner, trimmed_by_hand(before, self->rows)));
                                 self->rows = outer_rows;
                               }
                               EXPECT_TRUE(at::equal(inputs[0], before));
                               return States{inputs[0]};
                             },
                             {});
  self = &layers;
  layers.rows = indices({0, 2, 3});
  const at::Tensor hidden = batch_of({4, 3});
  EXPECT_TRUE(at::equal(layers({hidden})[0], trimmed_by_hand(hidden, layers.rows)));
  EXPECT_EQ(depth, 2);
}

TEST(DecoderReplayLayersTest, ThreadsMayShareOneObject) {
  DecoderReplayLayers layers(8, [](const States& inputs) { return States{inputs[0].mul(2)}; }, {});
  layers.rows = indices({1, 3});
  int wrong[4] = {};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const at::Tensor hidden = at::full({5, 256}, static_cast<float>(t + 1));
      const at::Tensor expected = trimmed_by_hand(hidden.mul(2), layers.rows);
      for (int i = 0; i < 50; ++i) wrong[t] += !at::equal(layers({hidden})[0], expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : wrong) EXPECT_EQ(count, 0);
}

TEST(DecoderReplayLayersTest, GradientsFlowThroughTheKeptRowsOnly) {
  DecoderReplayLayers layers(8, [](const States& inputs) { return States{inputs[0].mul(3)}; }, {});
  layers.rows = indices({0, 2});
  const at::Tensor hidden = at::full({3, 2}, 1.0f).set_requires_grad(true);
  layers({hidden})[0].sum().backward();
  EXPECT_TRUE(at::equal(hidden.grad(), at::tensor({3.0f, 0.0f, 3.0f}).unsqueeze(1).expand({3, 2})));
}

TEST(DecoderReplayLayersTest, RefusesWhatItCannotBeBuiltFrom) {
  EXPECT_THROW(DecoderReplayLayers(0, identity, {}), std::invalid_argument);
  EXPECT_THROW(DecoderReplayLayers(8, nullptr, {}), std::invalid_argument);
  EXPECT_THROW(DecoderReplayLayers(8, identity, {at::Tensor()}), std::invalid_argument);
  DecoderReplayLayers layers(8, identity, {});
  layers.rows = indices({0});
  EXPECT_THROW(layers({}), std::invalid_argument);
  EXPECT_THROW(layers({at::Tensor()}), std::invalid_argument);
}

}  // namespace
}  // namespace reprise
