#include "context/kv_cache.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace reprise {
namespace {

// A window group in every layer (kind 0), a group of two ratios and widths in layers 1 and 3 (kinds 1 and 2), and state
// in layer 1.
ModelFacts model() {
  ModelFacts facts;
  facts.layers.assign(5, {.window = 16});
  facts.groups = {{.name = "window", .window = 16}, {.name = "compressed", .cacheable = true}};
  for (int64_t layer = 0; layer < 5; ++layer) facts.cache_tensors.push_back({.kind = 0, .layer = layer, .width = 6});
  for (const auto& [layer, ratio] : {std::pair<int64_t, int64_t>{1, 4}, {3, 1}}) {
    facts.cache_tensors.push_back({.kind = 1, .layer = layer, .group = 1, .ratio = ratio, .width = 6});
    facts.cache_tensors.push_back({.kind = 2, .layer = layer, .group = 1, .ratio = ratio, .width = 4});
  }
  facts.state_tensors = {{.kind = 0, .layer = 1, .sizes = {4, 2, 6}}};
  return facts;
}

KvCacheConfig sizes(bool poison) {
  return {.page_size = 8, .num_pages = {3, 5}, .max_num_seqs = 2, .dtype = at::kBFloat16, .poison = poison};
}

using Shape = std::vector<int64_t>;

TEST(KvCache, HoldsWhatEachLayerOwns) {
  KvCache cache(model(), sizes(false));
  EXPECT_EQ(cache.page_size(), 8);
  for (int64_t layer = 0; layer < 5; ++layer) {
    EXPECT_EQ(cache.cells(0, layer).sizes(), (Shape{3 * 8, 6}));
    EXPECT_EQ(cache.cells(0, layer).scalar_type(), at::kBFloat16);
  }
  EXPECT_EQ(cache.cells(1, 1).sizes(), (Shape{5 * 2, 6}));  // a page of 8 tokens holds 2 groups of 4
  EXPECT_EQ(cache.cells(2, 1).sizes(), (Shape{5 * 2, 4}));
  EXPECT_EQ(cache.state(0, 1).sizes(), (Shape{2, 4, 2, 6}));
  EXPECT_EQ(cache.state(0, 1).scalar_type(), at::kFloat);
  EXPECT_EQ(cache.cells(1, 3).sizes(), (Shape{5 * 8, 6}));
  EXPECT_EQ(cache.cells(2, 3).sizes(), (Shape{5 * 8, 4}));
  EXPECT_FALSE(cache.state(0, 3).defined());
  for (const int64_t layer : {0, 2, 4}) {
    EXPECT_FALSE(cache.cells(1, layer).defined());
    EXPECT_FALSE(cache.cells(2, layer).defined());
    EXPECT_FALSE(cache.state(0, layer).defined());
  }
  EXPECT_THROW(cache.cells(0, 5), std::out_of_range);
  EXPECT_THROW(cache.cells(3, 0), std::out_of_range);
}

TEST(KvCache, CountsTheBytesOfItsTensors) {
  KvCache cache(model(), sizes(false));
  const auto bytes = [](const at::Tensor& x) { return static_cast<int64_t>(x.nbytes()); };
  int64_t window = 0;
  for (int64_t layer = 0; layer < 5; ++layer) window += bytes(cache.cells(0, layer));
  EXPECT_EQ(3 * KvCache::page_bytes(model(), 0, 8, at::kBFloat16), window);
  EXPECT_EQ(5 * KvCache::page_bytes(model(), 1, 8, at::kBFloat16),
            bytes(cache.cells(1, 1)) + bytes(cache.cells(1, 3)) + bytes(cache.cells(2, 1)) + bytes(cache.cells(2, 3)));
  EXPECT_EQ(2 * KvCache::state_bytes(model()), bytes(cache.state(0, 1)));
  // 5 layers of 8 cells of 6 values; 2 + 8 cells of 6 + 4 values; 4 tokens' value and gate of 6 values
  EXPECT_EQ(KvCache::page_bytes(model(), 0, 8, at::kFloat), 5 * 8 * 6 * 4);
  EXPECT_EQ(KvCache::page_bytes(model(), 1, 8, at::kFloat), 10 * 10 * 4);
  EXPECT_EQ(KvCache::state_bytes(model()), 4 * 2 * 6 * 4);
}

bool all_nan(const at::Tensor& x) { return x.isnan().all().item<bool>(); }

TEST(KvCache, PoisonFillsEveryCellAtTheStart) {
  KvCache cache(model(), sizes(true));
  for (int64_t layer = 0; layer < 5; ++layer) EXPECT_TRUE(all_nan(cache.cells(0, layer)));
  for (const int64_t layer : {1, 3}) EXPECT_TRUE(all_nan(cache.cells(1, layer)) && all_nan(cache.cells(2, layer)));
  EXPECT_TRUE(all_nan(cache.state(0, 1)));
}

TEST(KvCache, PoisonOfAPageIsThatPageInEveryLayerOfItsGroup) {
  for (const bool poison : {true, false}) {
    KvCache cache(model(), sizes(poison));
    EXPECT_EQ(cache.poisons(), poison);
    for (int64_t layer = 0; layer < 5; ++layer) cache.cells(0, layer).fill_(1);
    cache.cells(1, 1).fill_(1);
    cache.poison_page(0, 1);
    for (int64_t layer = 0; layer < 5; ++layer) {
      const at::Tensor& cells = cache.cells(0, layer);
      EXPECT_EQ(all_nan(cells.narrow(0, 8, 8)), poison);
      EXPECT_TRUE(cells.narrow(0, 0, 8).eq(1).all().item<bool>() && cells.narrow(0, 16, 8).eq(1).all().item<bool>());
    }
    EXPECT_TRUE(cache.cells(1, 1).eq(1).all().item<bool>());
    cache.poison_page(1, 4);
    EXPECT_EQ(all_nan(cache.cells(1, 1).narrow(0, 8, 2)), poison);
    EXPECT_TRUE(cache.cells(1, 1).narrow(0, 0, 8).eq(1).all().item<bool>());
  }
}

TEST(KvCache, APageHoldsWholeGroups) {
  KvCacheConfig config = sizes(false);
  config.page_size = 6;  // not a multiple of 4
  EXPECT_THROW(KvCache(model(), config), std::logic_error);
}

}  // namespace
}  // namespace reprise
