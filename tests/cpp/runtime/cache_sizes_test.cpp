#include "runtime/cache_sizes.h"

#include <gtest/gtest.h>

#include "context/kv_cache.h"
#include "engine_harness.h"

namespace reprise::testing {
namespace {

int64_t bytes_of(const ModelFacts& model, const EngineConfig& engine, const CacheSizes& sizes) {
  return sizes.num_pages[0] * KvCache::page_bytes(model, 0, engine.page_size, at::kFloat) +
         sizes.num_pages[1] * KvCache::page_bytes(model, 1, engine.page_size, at::kFloat) +
         engine.max_num_seqs * KvCache::state_bytes(model);
}

// What choose_cache_sizes itself asks for at least: a budget of one byte is refused with that number.
int64_t stated_least(const ModelFacts& model, EngineConfig engine) {
  engine.kv_cache_memory = 1;
  try {
    choose_cache_sizes(model, engine, at::kFloat);
  } catch (const std::invalid_argument& error) {
    const std::string said = error.what();
    const std::string before = "wanted at least ";
    return std::stoll(said.substr(said.find(before) + before.size()));
  }
  return 0;
}

TEST(CacheSizes, MoreMemoryNeverMeansFewerPages) {
  const ModelFacts model = make_model_facts(load_model_config(data_path("v41-tiny")));
  for (const int64_t page_size : {4, 64}) {
    for (const int64_t max_num_seqs : {1, 3, 64}) {
      for (const int64_t max_model_len : {64, 1000, 0}) {
        EngineConfig engine;
        engine.page_size = page_size;
        engine.max_num_seqs = max_num_seqs;
        engine.max_model_len = max_model_len;
        engine.max_num_batched_tokens = 256;
        const int64_t wanted_len = max_model_len > 0 ? max_model_len : model.max_position_embeddings;
        const int64_t least = stated_least(model, engine);
        ASSERT_GT(least, 0);
        const int64_t last_step = 400;
        CacheSizes before{.num_pages = {0, 0}};
        for (int64_t step = 0; step <= last_step; ++step) {
          engine.kv_cache_memory = least + step * least / 50;  // from once to nine times the least
          const CacheSizes sizes = choose_cache_sizes(model, engine, at::kFloat);
          SCOPED_TRACE(::testing::Message()
                       << "page " << page_size << ", seqs " << max_num_seqs << ", len " << max_model_len << ", budget "
                       << engine.kv_cache_memory << " of " << least);
          ASSERT_GE(sizes.num_pages[1], 2);
          ASSERT_GE(sizes.num_pages[0], before.num_pages[0]);
          ASSERT_GE(sizes.num_pages[1], before.num_pages[1]);
          ASSERT_GE(sizes.max_model_len, before.max_model_len);
          ASSERT_EQ(sizes.max_model_len, std::min(wanted_len, (sizes.num_pages[1] - 1) * page_size));
          ASSERT_LE(bytes_of(model, engine, sizes), engine.kv_cache_memory);
          before = sizes;
        }
      }
    }
  }
}

// One request of the whole length takes what it needs before a second one gets any: 64 tokens are one page of 64.
TEST(CacheSizes, TheLeastMemoryServesARequest) {
  EngineConfig engine = tiny_config("v41-tiny");
  engine.page_size = 64;
  engine.max_num_seqs = 1;
  engine.max_model_len = 64;
  const int64_t least = stated_least(make_model_facts(load_model_config(data_path("v41-tiny"))), engine);
  for (const double times : {1.0, 1.1, 1.15, 1.3, 1.5, 4.0}) {
    engine.kv_cache_memory = static_cast<int64_t>(times * static_cast<double>(least));
    const auto loaded = Engine::load(data_path("v41-tiny"), engine);
    EXPECT_EQ(loaded->stats().max_model_len, 64) << times;
    EXPECT_EQ(run(*loaded, {greedy_request({5, 6, 7}, 4)}).front().tokens.size(), 4u) << times;
  }
}

// Memory without end gives every one of the requests its whole length, and no more: by hand, 3 requests of 100 tokens
// in pages of 4 are 75 pages and the pad page; each keeps its window of 8 in 3 pages and has one page of rows to spare,
// beside 64 pages for the step's 256 rows and the pad page.
TEST(CacheSizes, TakesNoMoreThanTheRequestsCanUse) {
  const ModelFacts model = make_model_facts(load_model_config(data_path("v41-tiny")));
  EngineConfig engine;
  engine.page_size = 4;
  engine.max_num_seqs = 3;
  engine.max_model_len = 100;
  engine.max_num_batched_tokens = 256;
  engine.kv_cache_memory = int64_t{1} << 60;
  CacheSizes sizes = choose_cache_sizes(model, engine, at::kFloat);
  EXPECT_EQ(sizes.num_pages[1], 76);
  EXPECT_EQ(sizes.num_pages[0], 3 * 3 + 64 + 3 + 1);
  // No step has more rows than all requests together.
  engine.max_num_batched_tokens = 1 << 20;
  sizes = choose_cache_sizes(model, engine, at::kFloat);
  EXPECT_EQ(sizes.num_pages[0], 3 * 3 + 75 + 3 + 1);
}

}  // namespace
}  // namespace reprise::testing
