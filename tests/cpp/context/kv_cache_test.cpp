#include "context/kv_cache.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace reprise {
namespace {

// Layers 1 and 3 publish, at ratios 4 and 1.
ModelConfig model() {
  ModelConfig config;
  config.num_hidden_layers = 5;
  config.head_dim = 6;
  config.index_head_dim = 4;
  config.compress_ratios = {0, 4, 4, 1, 1};
  config.kv_source_layer_ids = {1, 3};
  return config;
}

KvCacheConfig sizes(bool poison) {
  return {.page_size = 8,
          .num_window_pages = 3,
          .num_compressed_pages = 5,
          .max_num_seqs = 2,
          .dtype = at::kBFloat16,
          .poison = poison};
}

using Shape = std::vector<int64_t>;

TEST(KvCache, HoldsWhatEachLayerOwns) {
  KvCache cache(model(), sizes(false));
  EXPECT_EQ(cache.page_size(), 8);
  for (int64_t layer = 0; layer < 5; ++layer) {
    EXPECT_EQ(cache.window(layer).sizes(), (Shape{3 * 8, 6}));
    EXPECT_EQ(cache.window(layer).scalar_type(), at::kBFloat16);
  }
  EXPECT_EQ(cache.compressed(1).sizes(), (Shape{5 * 2, 6}));  // a page of 8 tokens holds 2 groups of 4
  EXPECT_EQ(cache.index_keys(1).sizes(), (Shape{5 * 2, 4}));
  EXPECT_EQ(cache.partial(1).sizes(), (Shape{2, 4, 2, 6}));
  EXPECT_EQ(cache.partial(1).scalar_type(), at::kFloat);
  EXPECT_EQ(cache.compressed(3).sizes(), (Shape{5 * 8, 6}));
  EXPECT_EQ(cache.index_keys(3).sizes(), (Shape{5 * 8, 4}));
  EXPECT_FALSE(cache.partial(3).defined()) << "groups of one token are never incomplete";
  for (const int64_t layer : {0, 2, 4}) {
    EXPECT_FALSE(cache.compressed(layer).defined());
    EXPECT_FALSE(cache.index_keys(layer).defined());
    EXPECT_FALSE(cache.partial(layer).defined());
  }
  EXPECT_THROW(cache.window(5), std::out_of_range);
}

TEST(KvCache, CountsTheBytesOfItsTensors) {
  KvCache cache(model(), sizes(false));
  const auto bytes = [](const at::Tensor& x) { return static_cast<int64_t>(x.nbytes()); };
  int64_t window = 0;
  for (int64_t layer = 0; layer < 5; ++layer) window += bytes(cache.window(layer));
  EXPECT_EQ(3 * KvCache::window_page_bytes(model(), 8, at::kBFloat16), window);
  EXPECT_EQ(5 * KvCache::compressed_page_bytes(model(), 8, at::kBFloat16),
            bytes(cache.compressed(1)) + bytes(cache.compressed(3)) + bytes(cache.index_keys(1)) +
                bytes(cache.index_keys(3)));
  EXPECT_EQ(2 * KvCache::partial_bytes(model()), bytes(cache.partial(1)));
  // 5 layers of 8 cells of 6 values; 2 + 8 cells of 6 + 4 values; 4 tokens' value and gate of 6 values
  EXPECT_EQ(KvCache::window_page_bytes(model(), 8, at::kFloat), 5 * 8 * 6 * 4);
  EXPECT_EQ(KvCache::compressed_page_bytes(model(), 8, at::kFloat), 10 * 10 * 4);
  EXPECT_EQ(KvCache::partial_bytes(model()), 4 * 2 * 6 * 4);
}

bool all_nan(const at::Tensor& x) { return x.isnan().all().item<bool>(); }

TEST(KvCache, PoisonFillsEveryCellAtTheStart) {
  KvCache cache(model(), sizes(true));
  for (int64_t layer = 0; layer < 5; ++layer) EXPECT_TRUE(all_nan(cache.window(layer)));
  for (const int64_t layer : {1, 3}) EXPECT_TRUE(all_nan(cache.compressed(layer)) && all_nan(cache.index_keys(layer)));
  EXPECT_TRUE(all_nan(cache.partial(1)));
}

TEST(KvCache, PoisonOfAPageIsThatPageInEveryLayer) {
  for (const bool poison : {true, false}) {
    KvCache cache(model(), sizes(poison));
    for (int64_t layer = 0; layer < 5; ++layer) cache.window(layer).fill_(1);
    cache.compressed(1).fill_(1);
    cache.poison_window_page(1);
    for (int64_t layer = 0; layer < 5; ++layer) {
      const at::Tensor& cells = cache.window(layer);
      EXPECT_EQ(all_nan(cells.narrow(0, 8, 8)), poison);
      EXPECT_TRUE(cells.narrow(0, 0, 8).eq(1).all().item<bool>() && cells.narrow(0, 16, 8).eq(1).all().item<bool>());
    }
    EXPECT_TRUE(cache.compressed(1).eq(1).all().item<bool>());
  }
}

TEST(KvCache, APageHoldsWholeGroups) {
  KvCacheConfig config = sizes(false);
  config.page_size = 6;  // not a multiple of 4
  EXPECT_THROW(KvCache(model(), config), std::logic_error);
}

TEST(KvCache, WithoutSourcesThereAreWindowsOnly) {
  ModelConfig config = model();
  config.kv_source_layer_ids.clear();
  config.compress_ratios.assign(5, 0);
  KvCacheConfig pages = sizes(false);
  pages.num_compressed_pages = 0;
  KvCache cache(config, pages);
  EXPECT_EQ(cache.window(4).sizes(), (Shape{24, 6}));
  EXPECT_FALSE(cache.compressed(1).defined());
  EXPECT_EQ(KvCache::compressed_page_bytes(config, 8, at::kFloat), 0);
  EXPECT_EQ(KvCache::partial_bytes(config), 0);
}

}  // namespace
}  // namespace reprise
