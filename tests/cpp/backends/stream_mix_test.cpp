#include "backends/stream_mix.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "kernel_testing.h"

namespace reprise {
namespace {

TEST(FirstStream, TakesAllOfStreamZero) {
  const at::Tensor pre = first_stream(at::empty({3, 2, 5}, at::kBFloat16));
  EXPECT_TRUE(pre.equal(tensor_of<float>({1, 0, 1, 0, 1, 0}).view({3, 2})));
  EXPECT_EQ(first_stream(at::empty({0, 4, 5})).sizes(), (std::vector<int64_t>{0, 4}));
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

struct Mixes {
  std::vector<double> pre, post, comb;
};

// The formulas of one hyper-connection, in double.
Mixes expected_mix(const at::Tensor& residual, const at::Tensor& fn, const at::Tensor& base, const at::Tensor& scale,
                   int64_t iters, double hc_eps, double rms_norm_eps) {
  const auto S = static_cast<size_t>(residual.size(1));
  const size_t width = S * static_cast<size_t>(residual.size(2));
  const auto x = doubles(residual), w = doubles(fn), b = doubles(base), f = doubles(scale);
  Mixes mixes;
  for (size_t t = 0; t < static_cast<size_t>(residual.size(0)); ++t) {
    const double* z = x.data() + t * width;
    double squares = 0;
    for (size_t i = 0; i < width; ++i) squares += z[i] * z[i];
    const double inverse = 1 / std::sqrt(squares / static_cast<double>(width) + rms_norm_eps);
    std::vector<double> logits(S * (S + 2));
    for (size_t o = 0; o < logits.size(); ++o) {
      double u = 0;
      for (size_t i = 0; i < width; ++i) u += w[o * width + i] * z[i];
      logits[o] = b[o] + u * inverse * f[o < S ? 0 : o < 2 * S ? 1 : 2];
    }
    for (size_t s = 0; s < S; ++s) mixes.pre.push_back(sigmoid(logits[s]) + hc_eps);
    for (size_t s = 0; s < S; ++s) mixes.post.push_back(2 * sigmoid(logits[S + s]));
    std::vector<double> m(S * S);
    for (size_t i = 0; i < S; ++i) {
      double total = 0;
      for (size_t o = 0; o < S; ++o) total += std::exp(logits[2 * S + i * S + o]);
      for (size_t o = 0; o < S; ++o) m[i * S + o] = std::exp(logits[2 * S + i * S + o]) / total + hc_eps;
    }
    const auto divide = [&](size_t outer, size_t inner) {  // by the sums over the axis of stride `inner`
      for (size_t a = 0; a < S; ++a) {
        double total = hc_eps;
        for (size_t c = 0; c < S; ++c) total += m[a * outer + c * inner];
        for (size_t c = 0; c < S; ++c) m[a * outer + c * inner] /= total;
      }
    };
    divide(1, S);  // over the first axis
    for (int64_t k = 1; k < iters; ++k) {
      divide(S, 1);  // over the last
      divide(1, S);
    }
    mixes.comb.insert(mixes.comb.end(), m.begin(), m.end());
  }
  return mixes;
}

struct Connection {
  at::Tensor fn, base, scale;
  PackedWeight packed;

  Connection(int64_t streams, int64_t hidden, std::mt19937& random, float spread = 1)
      : fn(normal({streams * (streams + 2), streams * hidden}, random, at::kFloat, 0.3f)),
        base(normal({streams * (streams + 2)}, random, at::kFloat, spread)),
        scale(tensor_of<float>({0.7f, -1.2f, 0.4f})),
        packed(fn) {}

  StreamMix mix(const at::Tensor& residual, int64_t iters = 20, double hc_eps = 1e-6) const {
    return stream_mix(residual, packed, {base, scale, iters, hc_eps, 1e-20});
  }
};

class HyperConnection : public ::testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, HyperConnection, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST_P(HyperConnection, MixesFollowTheFormulas) {
  constexpr unsigned kSeed = 51;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  for (const auto& [streams, hidden, iters] :
       std::vector<std::tuple<int64_t, int64_t, int64_t>>{{4, 24, 20}, {4, 24, 1}, {2, 40, 3}, {1, 8, 2}, {12, 8, 4}}) {
    const Connection connection(streams, hidden, random);
    const at::Tensor residual = normal({21, streams, hidden}, random, GetParam(), 2);
    const StreamMix mix = connection.mix(residual, iters);
    const Mixes wanted = expected_mix(residual, connection.fn, connection.base, connection.scale, iters, 1e-6, 1e-20);
    expect_close(mix.pre, wanted.pre, kFloatTolerance);  // bfloat16 streams are widened: the arithmetic is float32
    expect_close(mix.post, wanted.post, kFloatTolerance);
    expect_close(mix.comb, wanted.comb, kFloatTolerance);
  }
}

// Large enough to be seen: at the released 1e-6 it hides in float32 rounding.
TEST_P(HyperConnection, TheEpsilonEntersWhereTheFormulasSay) {
  constexpr unsigned kSeed = 52;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  const Connection connection(4, 16, random, 3);
  const at::Tensor residual = normal({9, 4, 16}, random, GetParam());
  for (const int64_t iters : {1, 2, 3}) {
    const StreamMix mix = connection.mix(residual, iters, 0.25);
    const Mixes wanted = expected_mix(residual, connection.fn, connection.base, connection.scale, iters, 0.25, 1e-20);
    expect_close(mix.pre, wanted.pre, kFloatTolerance);
    expect_close(mix.post, wanted.post, kFloatTolerance);
    expect_close(mix.comb, wanted.comb, kFloatTolerance);
  }
}

TEST(StreamMix, ByHandWithoutAnyInput) {
  // fn x = 0 for zero streams, so the base alone speaks: pre = sigmoid(0) + eps, post = 2 sigmoid(0), and the square
  // [[ln 3, 0], [0, 0]] has the row softmax [[3/4, 1/4], [1/2, 1/2]], whose columns sum to 5/4 and 3/4.
  std::mt19937 random(53);
  Connection connection(2, 8, random);
  connection.base = tensor_of<float>({0, 0, 0, 0, std::log(3.0f), 0, 0, 0});
  const StreamMix mix = connection.mix(at::full({1, 2, 8}, 0.0, at::kFloat), 1, 0);
  expect_close(mix.pre, {0.5, 0.5}, kFloatTolerance);
  expect_close(mix.post, {1, 1}, kFloatTolerance);
  expect_close(mix.comb, {0.6, 1.0 / 3, 0.4, 2.0 / 3}, kFloatTolerance);
  const StreamMix again = connection.mix(at::full({1, 2, 8}, 0.0, at::kFloat), 2, 0);
  // rows sum to 14/15 and 16/15: [[9/14, 5/14], [3/8, 5/8]]; columns then to 57/56 and 55/56
  expect_close(again.comb, {36.0 / 57, 20.0 / 55, 21.0 / 57, 35.0 / 55}, kFloatTolerance);
}

TEST_P(HyperConnection, MixesOfARowDependOnThatRowAlone) {
  std::mt19937 random(54);
  for (const int64_t streams : {4, 12}) {  // 12 streams have more outputs than one block of the weight
    const Connection connection(streams, 20, random);
    const at::Tensor residual = normal({53, streams, 20}, random, GetParam());
    expect_rows_independent(53, 54, [&](const auto& rows) { return connection.mix(rows_of(residual, rows)).pre; });
    expect_rows_independent(53, 55, [&](const auto& rows) { return connection.mix(rows_of(residual, rows)).post; });
    expect_rows_independent(53, 56, [&](const auto& rows) { return connection.mix(rows_of(residual, rows)).comb; });
  }
}

TEST_P(HyperConnection, CollapseSumsRoundsAndNorms) {
  constexpr unsigned kSeed = 57;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  const int64_t T = 11, S = 4, H = 40;
  const at::Tensor residual = normal({T, S, H}, random, GetParam());
  const at::Tensor pre = normal({T, S}, random);
  const at::Tensor weight = normal({H}, random);
  const auto x = doubles(residual), p = doubles(pre), w = doubles(weight);
  std::vector<double> wanted;
  for (size_t t = 0; t < 11; ++t) {
    std::vector<double> sums(40, 0);
    double squares = 0;
    for (size_t h = 0; h < 40; ++h) {
      for (size_t s = 0; s < 4; ++s) sums[h] += p[t * 4 + s] * x[(t * 4 + s) * 40 + h];
      if (GetParam() == at::kBFloat16) sums[h] = static_cast<float>(c10::BFloat16(static_cast<float>(sums[h])));
      squares += sums[h] * sums[h];
    }
    for (size_t h = 0; h < 40; ++h) wanted.push_back(w[h] * sums[h] / std::sqrt(squares / 40 + 1e-20));
  }
  expect_close(collapse_and_norm(residual, pre, weight, 1e-20), wanted, tolerance_of(GetParam()));
}

TEST(Collapse, RoundsToTheModelDtypeBeforeItsNorm) {
  // One channel is 1 + 2^-8, halfway between the bfloat16 neighbours 1 and 1 + 2^-7, so it goes to the even 1 like all
  // the others. Unrounded it would come out of the norm as 1.5 * 1.0038, which is nearer to 1.5078 than to 1.5.
  at::Tensor residual = at::full({1, 2, 64}, 1.0, at::kBFloat16);
  residual.select(1, 1).fill_(0);
  residual[0][1][5] = 1;
  const at::Tensor x =
      collapse_and_norm(residual, tensor_of<float>({1, 0x1p-8f}).view({1, 2}), at::full({64}, 1.5, at::kFloat), 1e-20);
  EXPECT_EQ(doubles(x), std::vector<double>(64, 1.5));
}

TEST_P(HyperConnection, CollapseOfZerosIsZero) {
  const at::Tensor x = collapse_and_norm(at::full({2, 4, 24}, 0.0, GetParam()), at::full({2, 4}, 0.5, at::kFloat),
                                         at::full({24}, 1.0, at::kFloat), 1e-20);
  EXPECT_EQ(doubles(x), std::vector<double>(48, 0));
}

TEST_P(HyperConnection, ExpandMixesFromInToOut) {
  constexpr unsigned kSeed = 58;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  const int64_t T = 9, S = 4, H = 24;
  for (const auto y_dtype : {at::kFloat, GetParam()}) {
    at::Tensor residual = normal({T, S, H}, random, GetParam());
    const at::Tensor y = normal({T, H}, random, y_dtype);
    const StreamMix mix{{}, normal({T, S}, random), normal({T, S, S}, random)};
    const auto x = doubles(residual), layer = doubles(y), post = doubles(mix.post), comb = doubles(mix.comb);
    std::vector<double> wanted;
    for (size_t t = 0; t < 9; ++t) {
      for (size_t o = 0; o < 4; ++o) {
        for (size_t h = 0; h < 24; ++h) {
          double sum = post[t * 4 + o] * layer[t * 24 + h];
          for (size_t i = 0; i < 4; ++i) sum += comb[(t * 4 + i) * 4 + o] * x[(t * 4 + i) * 24 + h];
          wanted.push_back(sum);
        }
      }
    }
    expand_streams(y, mix, residual);
    expect_close(residual, wanted, tolerance_of(GetParam()));
  }
}

TEST_P(HyperConnection, CollapseAndExpandOfARowDependOnThatRowAlone) {
  std::mt19937 random(59);
  const int64_t T = 45, S = 4, H = 36;
  const at::Tensor residual = normal({T, S, H}, random, GetParam());
  const at::Tensor y = normal({T, H}, random, GetParam());
  const at::Tensor weight = normal({H}, random);
  const StreamMix mix{normal({T, S}, random), normal({T, S}, random), normal({T, S, S}, random)};
  expect_rows_independent(T, 59, [&](const auto& rows) {
    return collapse_and_norm(rows_of(residual, rows), rows_of(mix.pre, rows), weight, 1e-20);
  });
  expect_rows_independent(T, 60, [&](const auto& rows) {
    at::Tensor x = rows_of(residual, rows);
    expand_streams(rows_of(y, rows), {{}, rows_of(mix.post, rows), rows_of(mix.comb, rows)}, x);
    return x;
  });
}

TEST(HyperConnections, SayWhatDoesNotFit) {
  std::mt19937 random(61);
  const Connection connection(4, 8, random);
  EXPECT_THROW(connection.mix(normal({2, 4, 10}, random)), std::logic_error);
  EXPECT_THROW(connection.mix(normal({2, 2, 16}, random)), std::logic_error);
  at::Tensor residual = normal({2, 4, 8}, random);
  const StreamMix mix{{}, normal({2, 4}, random), normal({2, 4, 4}, random)};
  EXPECT_THROW(expand_streams(normal({1, 8}, random), mix, residual), std::logic_error);
}

}  // namespace
}  // namespace reprise
