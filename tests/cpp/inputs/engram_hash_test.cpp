// Golden numbers: tests/data/engram_hash_golden.py.
#include "inputs/engram_hash.h"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "inputs/numpy_random.h"

namespace reprise {
namespace {

std::vector<int64_t> draw(NumpyGenerator& generator, int64_t bound, int count) {
  std::vector<int64_t> values;
  for (int i = 0; i < count; ++i) values.push_back(generator.integer(bound));
  return values;
}

TEST(NumpyGenerator, DrawsWithRejectionsFromMoreThan32Bits) {
  NumpyGenerator generator(10007);
  EXPECT_EQ(draw(generator, (int64_t{1} << 62) + 1, 10),
            (std::vector<int64_t>{3796813830707316621, 239796500919311629, 3665776621713512657, 1979716633701278750,
                                  3488206865698518458, 103954991085286065, 4378713436625235508, 1740515430834717554,
                                  268204739885178866, 3760725938720125643}));
}

TEST(NumpyGenerator, DrawsWithRejectionsFromUpTo32Bits) {
  NumpyGenerator generator(10007 * 14);
  EXPECT_EQ(draw(generator, (int64_t{1} << 31) + 1, 10),
            (std::vector<int64_t>{1188439519, 1002436873, 1582047823, 1162067491, 1061383543, 1714062254, 1711146285,
                                  1990233148, 1216968841, 1826115618}));
  NumpyGenerator full(7);
  EXPECT_EQ(draw(full, int64_t{1} << 32, 3), (std::vector<int64_t>{4058335883, 2684764585, 2938530453}));
}

TEST(NumpyGenerator, KeepsHalfADrawAcrossOtherDrawsAndTakesSeedsOf64Bits) {
  NumpyGenerator generator((uint64_t{1} << 40) + 3);
  std::vector<int64_t> values;
  for (const auto& [bound, count] :
       std::vector<std::pair<int64_t, int>>{{1000, 3}, {int64_t{1} << 40, 2}, {1, 2}, {1000, 3}})
    for (const int64_t value : draw(generator, bound, count)) values.push_back(value);
  EXPECT_EQ(values, (std::vector<int64_t>{733, 773, 444, 520265718625, 71304089942, 0, 0, 995, 786, 195}));
}

// The bounds of compressed vocabularies of 242 and 99092 ids; a bound below 2^32 would take 2^31 ids.
TEST(NumpyGenerator, DrawsTheMultipliersOfRealModels) {
  const std::vector<int64_t> wanted[] = {{15689313350030233, 990894631897981, 7362222829481329, 15147837279807903},
                                         {38316048023122, 2419938046656, 17979836159674, 36993668729195},
                                         {13864037623501832, 10546092701480099, 6330698630190236, 16915091716756929},
                                         {33858405369630, 25755403400457, 15460673601360, 41309613242795}};
  int at = 0;
  for (const uint64_t layer : {1, 14}) {
    for (const int64_t bound : {19056553795154495, 46539438283891}) {
      NumpyGenerator generator(10007 * layer);
      EXPECT_EQ(draw(generator, bound, 4), wanted[at++]) << "layer " << layer << ", bound " << bound;
    }
  }
}

// tests/data/v41-tiny-engram/config.json, and its engram_num_embeddings.
constexpr int64_t kTinyRows = 272;
EngramFacts tiny_facts() {
  EngramFacts facts;
  facts.layer_ids = {1};
  facts.max_ngram_size = 3;
  facts.num_heads = 2;
  facts.vocab_size = 61;
  facts.compressed_vocab_size = 242;
  return facts;
}

EngramFacts released_facts() {
  EngramFacts facts;
  facts.layer_ids = {1, 14};
  facts.max_ngram_size = 4;
  facts.num_heads = 8;
  facts.vocab_size = 16'000'000;
  facts.compressed_vocab_size = 99092;
  return facts;
}

std::vector<int64_t> hash(const EngramHash& engram, const std::vector<int32_t>& lookback) {
  std::vector<int64_t> rows(static_cast<size_t>(engram.num_tables()));
  engram.hash(lookback, rows.data());
  return rows;
}

constexpr int32_t kPad = 5;

TEST(EngramHash, TinyFixture) {
  const EngramHash engram(tiny_facts(), 0, kPad);
  EXPECT_EQ(engram.num_tables(), 4);
  EXPECT_EQ(engram.num_rows(), kTinyRows);
  EXPECT_EQ(engram.max_ngram_size(), 3);
  EXPECT_EQ(hash(engram, {5, 5, 7}), (std::vector<int64_t>{25, 94, 187, 205}));
  EXPECT_EQ(hash(engram, {5, 7, 241}), (std::vector<int64_t>{13, 97, 145, 228}));
  EXPECT_EQ(hash(engram, {7, 241, 0}), (std::vector<int64_t>{49, 106, 184, 200}));
}

TEST(EngramHash, ReleasedSizesTwoLayers) {
  const std::vector<EngramHash> engrams = make_engram_hashes(released_facts(), kPad);
  ASSERT_EQ(engrams.size(), 2u);
  EXPECT_EQ(engrams[0].num_rows(), 384006168);
  EXPECT_EQ(engrams[1].num_rows(), 384016682);
  EXPECT_EQ(
      hash(engrams[0], {2, 31, 99091, 12345}),
      (std::vector<int64_t>{9897246,   18295278,  41032777,  63866487,  69231866,  82517737,  97316489,  115060326,
                            141700474, 155595602, 160746521, 181094523, 204714820, 209925446, 235492444, 255052575,
                            267836872, 273488615, 290918563, 315984030, 327490543, 336944607, 364905998, 368532261}));
  EXPECT_EQ(
      hash(engrams[1], {2, 31, 99091, 12345}),
      (std::vector<int64_t>{3178723,   25724543,  42522600,  51868741,  65586345,  95224956,  107120997, 126215113,
                            135854724, 150884927, 168817644, 187577353, 202717163, 218715070, 239375994, 244299326,
                            263969506, 276926877, 289641552, 311416803, 324659015, 346668034, 359322769, 377204907}));
}

TEST(EngramHash, RowsOfASequenceSeePadBeforeItsStart) {
  const EngramHash engram(tiny_facts(), 0, kPad);
  const std::vector<int32_t> ids{7, 241, 0};
  std::vector<int64_t> rows(12);
  engram.hash_rows(ids, 0, 3, rows.data());
  EXPECT_EQ(rows, (std::vector<int64_t>{25, 94, 187, 205, 13, 97, 145, 228, 49, 106, 184, 200}));
}

TEST(EngramHash, AChunkReadsTheIdsBeforeIt) {
  const EngramHash engram(released_facts(), 1, kPad);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 40; ++i) ids.push_back(i * 7919 % 99092);
  std::vector<int64_t> whole(40 * 24), chunk(24 * 24);
  engram.hash_rows(ids, 0, 40, whole.data());
  engram.hash_rows(ids, 9, 24, chunk.data());
  EXPECT_EQ(chunk, std::vector<int64_t>(whole.begin() + 9 * 24, whole.begin() + 33 * 24));
}

TEST(EngramHash, AnAbsentIdHidesEverythingBeforeIt) {
  const EngramHash engram(tiny_facts(), 0, kPad);
  constexpr int32_t kAbsent = EngramHash::kAbsent;
  EXPECT_EQ(hash(engram, {kAbsent, kAbsent, 7}), (std::vector<int64_t>{25, 94, 187, 205}));
  EXPECT_EQ(hash(engram, {9, kAbsent, 7}), (std::vector<int64_t>{25, 94, 187, 205}));
  EXPECT_EQ(hash(engram, {kAbsent, 7, 241}), (std::vector<int64_t>{13, 97, 145, 228}));
}

TEST(EngramHash, EachTableOwnsItsRows) {
  const EngramHash engram(tiny_facts(), 0, kPad);
  const int64_t first[] = {0, 61, 61 + 67, 61 + 67 + 71, 61 + 67 + 71 + 73};  // primes from 61 on
  std::vector<std::set<int64_t>> seen(4);
  for (int32_t a = 0; a < 242; ++a) {
    for (const int32_t b : {0, 1, 100, 241}) {
      const std::vector<int64_t> rows = hash(engram, {a, b, 241 - a});
      for (size_t table = 0; table < 4; ++table) {
        ASSERT_GE(rows[table], first[table]);
        ASSERT_LT(rows[table], first[table + 1]);
        seen[table].insert(rows[table]);
      }
    }
  }
  for (size_t table = 0; table < 4; ++table) EXPECT_GT(seen[table].size(), 50u) << table;
}

TEST(EngramHash, RefusesAPadOutsideTheVocabulary) {
  EXPECT_THROW(EngramHash(tiny_facts(), 0, 242), std::invalid_argument);
  EXPECT_THROW(EngramHash(tiny_facts(), 0, -1), std::invalid_argument);
}

}  // namespace
}  // namespace reprise
