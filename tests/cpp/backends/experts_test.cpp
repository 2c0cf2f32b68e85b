#include "backends/experts.h"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>

#include "kernel_testing.h"

namespace reprise {
namespace {

std::vector<int32_t> ints(const at::Tensor& x) {
  const int32_t* data = x.const_data_ptr<int32_t>();
  return {data, data + x.numel()};
}

double score_of(double logit) { return std::sqrt(std::log1p(std::exp(logit))); }

at::Tensor zeros(int64_t n) { return at::full({n}, 0.0, at::kFloat); }

TEST(RouteExperts, ByHand) {
  // softplus(ln(e - 1)) = 1 and softplus(ln(e^4 - 1)) = 4, so the scores are 1 and 2.
  const float one = std::log(std::exp(1.0f) - 1), two = std::log(std::exp(4.0f) - 1);
  const ExpertRoutes routes = route_experts(tensor_of<float>({-9, two, -9, one}).view({1, 4}), zeros(4), 2, 1.5);
  EXPECT_EQ(ints(routes.experts), (std::vector<int32_t>{4, 1, 3}));  // the shared one, whatever its row
  expect_close(routes.weights, {1, 1.0, 0.5}, kFloatTolerance);
}

TEST(RouteExperts, BiasChoosesButDoesNotWeigh) {
  const float one = std::log(std::exp(1.0f) - 1);
  const ExpertRoutes routes =
      route_experts(tensor_of<float>({5, one, 4, one}).view({1, 4}), tensor_of<float>({-10, 3, -10, 2}), 2, 1);
  EXPECT_EQ(ints(routes.experts), (std::vector<int32_t>{4, 1, 3}));
  expect_close(routes.weights, {1, 0.5, 0.5}, kFloatTolerance);
}

TEST(RouteExperts, TiesGoToTheLowerId) {
  EXPECT_EQ(ints(route_experts(at::full({1, 40}, 0.25, at::kFloat), zeros(40), 3, 1).experts),
            (std::vector<int32_t>{40, 0, 1, 2}));
  at::Tensor logits = at::full({1, 40}, 0.25, at::kFloat);
  logits[0][33] = 1;
  logits[0][2] = logits[0][7] = logits[0][5] = 0.5;
  EXPECT_EQ(ints(route_experts(logits, zeros(40), 3, 1).experts), (std::vector<int32_t>{40, 2, 5, 33}));
}

TEST(RouteExperts, AreTheBestByScoreAndBias) {
  constexpr unsigned kSeed = 121;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  const int64_t T = 60, E = 48, k = 6;
  const at::Tensor logits = normal({T, E}, random, at::kFloat, 8);  // past 20 softplus(x) is x
  const at::Tensor bias = normal({E}, random);
  const ExpertRoutes routes = route_experts(logits, bias, k, 2.5);
  const auto l = doubles(logits), b = doubles(bias);
  for (int64_t t = 0; t < T; ++t) {
    const double* row = l.data() + t * E;
    std::vector<int32_t> order(static_cast<size_t>(E));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t x, int32_t y) {
      return score_of(row[x]) + b[static_cast<size_t>(x)] > score_of(row[y]) + b[static_cast<size_t>(y)];
    });
    order.resize(static_cast<size_t>(k));
    std::sort(order.begin(), order.end());
    order.insert(order.begin(), static_cast<int32_t>(E));
    ASSERT_EQ(ints(routes.experts[t]), order) << "row " << t;
    order.erase(order.begin());
    double total = 1e-20;
    for (const int32_t e : order) total += score_of(row[e]);
    std::vector<double> weights{1};
    for (const int32_t e : order) weights.push_back(score_of(row[e]) / total * 2.5);
    expect_close(routes.weights[t], weights, kFloatTolerance);
  }
}

TEST(RouteExperts, OfARowDependOnThatRowAlone) {
  std::mt19937 random(122);
  const at::Tensor logits = normal({70, 37}, random);
  const at::Tensor bias = normal({37}, random);
  expect_rows_independent(70, 122,
                          [&](const auto& rows) { return route_experts(rows_of(logits, rows), bias, 5, 1.5).experts; });
  expect_rows_independent(70, 123,
                          [&](const auto& rows) { return route_experts(rows_of(logits, rows), bias, 5, 1.5).weights; });
}

TEST(RouteExperts, HopelessScoresStillGiveFiniteWeights) {
  const ExpertRoutes routes = route_experts(at::full({1, 4}, -1000.0, at::kFloat), zeros(4), 2, 1.5);
  EXPECT_EQ(ints(routes.experts), (std::vector<int32_t>{4, 0, 1}));
  EXPECT_EQ(doubles(routes.weights), (std::vector<double>{1, 0, 0}));
}

TEST(RouteExperts, NotANumberStillNamesExpertsThatExist) {
  at::Tensor logits = at::full({2, 64}, 0.5, at::kFloat);
  for (int64_t e = 0; e < 64; e += 3) logits[1][e] = kNotANumber;
  logits[0].fill_(kNotANumber);
  const auto experts = ints(route_experts(logits, zeros(64), 6, 1).experts);
  for (int64_t t = 0; t < 2; ++t) {
    const std::set<int32_t> chosen(experts.begin() + t * 7 + 1, experts.begin() + t * 7 + 7);
    EXPECT_EQ(chosen.size(), 6u);
    EXPECT_TRUE(*chosen.begin() >= 0 && *chosen.rbegin() < 64);
  }
}

// A feed-forward network and its weights in double.
struct Expert {
  std::vector<double> w1, w2, w3;
  GatedWeights weights;

  Expert(int64_t hidden, int64_t inner, at::ScalarType dtype, std::mt19937& random) {
    const at::Tensor a = normal({inner, hidden}, random, dtype, 0.4f);
    const at::Tensor b = normal({hidden, inner}, random, dtype, 0.2f);
    const at::Tensor c = normal({inner, hidden}, random, dtype, 0.4f);
    w1 = doubles(a), w2 = doubles(b), w3 = doubles(c);
    weights = {a, b, c};
  }

  std::vector<double> operator()(const double* x, size_t hidden, double limit) const {
    const size_t inner = w1.size() / hidden;
    std::vector<double> h(inner), y(hidden, 0);
    for (size_t i = 0; i < inner; ++i) {
      double gate = 0, up = 0;
      for (size_t j = 0; j < hidden; ++j) {
        gate += w1[i * hidden + j] * x[j];
        up += w3[i * hidden + j] * x[j];
      }
      gate = std::min(gate, limit);
      h[i] = gate / (1 + std::exp(-gate)) * std::clamp(up, -limit, limit);
    }
    for (size_t j = 0; j < hidden; ++j) {
      for (size_t i = 0; i < inner; ++i) y[j] += w2[j * inner + i] * h[i];
    }
    return y;
  }
};

struct Mixture {
  int64_t hidden;
  std::vector<Expert> experts;  // the shared one last
  PackedExperts packed;

  Mixture(int64_t routed, int64_t hidden, int64_t inner, at::ScalarType dtype, std::mt19937& random) : hidden(hidden) {
    for (int64_t e = 0; e <= routed; ++e) experts.emplace_back(hidden, inner, dtype, random);
    packed = pack_experts(routed + 1, [&](int64_t e) { return experts[static_cast<size_t>(e)].weights; });
  }

  at::Tensor operator()(const at::Tensor& x, const ExpertRoutes& routes, double limit) const {
    return sum_experts(run_experts(x, routes.experts, packed, limit), routes.weights, x.scalar_type());
  }

  std::vector<double> expected(const at::Tensor& x, const ExpertRoutes& routes, double limit) const {
    const auto rows = doubles(x), weights = doubles(routes.weights);
    const auto ids = ints(routes.experts);
    const auto H = static_cast<size_t>(hidden), k = static_cast<size_t>(routes.experts.size(1));
    std::vector<double> out;
    for (size_t t = 0; t < rows.size() / H; ++t) {
      std::vector<double> sum(H, 0);
      for (size_t j = 0; j < k; ++j) {
        const auto y = experts[static_cast<size_t>(ids[t * k + j])](rows.data() + t * H, H, limit);
        for (size_t i = 0; i < H; ++i) sum[i] += weights[t * k + j] * y[i];
      }
      out.insert(out.end(), sum.begin(), sum.end());
    }
    return out;
  }
};

// In bfloat16 the activations between the two products are rounded too.
Tolerance moe_tolerance(at::ScalarType dtype) {
  return dtype == at::kFloat ? kFloatTolerance : Tolerance{5e-2, 2e-2, 2e-5, 6e-3};
}

class Moe : public ::testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, Moe, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

// Both limits bite: gates and ups reach past 1.5.
TEST_P(Moe, IsTheSharedExpertPlusTheWeightedChosenOnes) {
  constexpr unsigned kSeed = 124;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  for (const auto& [count, hidden, inner] :
       std::vector<std::tuple<int64_t, int64_t, int64_t>>{{6, 24, 40}, {3, 136, 16}}) {
    const Mixture mixture(count, hidden, inner, GetParam(), random);
    const at::Tensor x = normal({17, hidden}, random, GetParam());
    const ExpertRoutes routes = route_experts(normal({17, count}, random), zeros(count), 2, 1.5);
    expect_close(mixture(x, routes, 1.5), mixture.expected(x, routes, 1.5), moe_tolerance(GetParam()));
  }
}

TEST(RunExperts, TheGateIsClampedAboveOnlyAndUpOnBothSides) {
  // hidden = inner = 2 and weights a multiple of one: h = silu(min(g x, 2)) * clamp(u x, -2, 2), every output their
  // sum.
  const auto constant = [](float value) { return at::full({2, 2}, value, at::kFloat); };
  const auto output = [&](float gate, float up) {
    const PackedExperts expert =
        pack_experts(1, [&](int64_t) { return GatedWeights{constant(gate), constant(0.5), constant(up)}; });
    return doubles(run_experts(constant(0.5).narrow(0, 0, 1), tensor_of<int32_t>({0}).view({1, 1}), expert, 2))[0];
  };
  const auto silu = [](double x) { return x / (1 + std::exp(-x)); };
  EXPECT_NEAR(output(1, 1), silu(1), 1e-6);
  EXPECT_NEAR(output(9, 1), silu(2), 1e-6);
  EXPECT_NEAR(output(-9, 1), silu(-9), 1e-6);
  EXPECT_NEAR(output(1, 9), 2 * silu(1), 1e-6);
  EXPECT_NEAR(output(1, -9), -2 * silu(1), 1e-6);
}

TEST_P(Moe, ExpertsMayHaveNoRowsOrMoreThanABlockOfThem) {
  constexpr unsigned kSeed = 125;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  const Mixture mixture(5, 16, 12, GetParam(), random);
  const int64_t rows = 300;
  const at::Tensor x = normal({rows, 16}, random, GetParam());
  ExpertRoutes routes{at::empty({rows, 3}, at::kInt), normal({rows, 3}, random)};
  routes.experts.select(1, 0).fill_(5);
  routes.experts.select(1, 1).fill_(1);  // all rows go to experts 5 and 1, none to 0 and 3
  for (int64_t t = 0; t < rows; ++t) routes.experts[t][2] = t % 10 == 0 ? 2 : 4;
  expect_close(mixture(x, routes, 7), mixture.expected(x, routes, 7), moe_tolerance(GetParam()));
  const at::Tensor none =
      mixture(x.narrow(0, 0, 0), {routes.experts.narrow(0, 0, 0), routes.weights.narrow(0, 0, 0)}, 7);
  EXPECT_EQ(none.sizes(), (std::vector<int64_t>{0, 16}));
}

TEST_P(Moe, ARowDependsOnItselfAlone) {
  std::mt19937 random(126);
  const Mixture mixture(6, 40, 24, GetParam(), random);
  const int64_t rows = 150;
  const at::Tensor x = normal({rows, 40}, random, GetParam());
  const at::Tensor logits = normal({rows, 6}, random);
  expect_rows_independent(rows, 126, [&](const auto& chosen) {
    return mixture(rows_of(x, chosen), route_experts(rows_of(logits, chosen), zeros(6), 3, 1.5), 2);
  });
}

// What a rank of its own would be given, or a model without one.
TEST_P(Moe, ExpertsRunWithoutTheSharedOneToo) {
  constexpr unsigned kSeed = 128;
  std::mt19937 random(kSeed);
  const Mixture mixture(4, 16, 12, GetParam(), random);
  const at::Tensor x = normal({9, 16}, random, GetParam());
  const ExpertRoutes routes = route_experts(normal({9, 4}, random), zeros(4), 2, 1.5);
  const at::Tensor all = run_experts(x, routes.experts, mixture.packed, 7).view({9, 3, 16});
  const at::Tensor routed = run_experts(x, routes.experts.narrow(1, 1, 2).contiguous(), mixture.packed, 7);
  EXPECT_TRUE(same_bits(routed.view({9, 2, 16}), all.narrow(1, 1, 2))) << "seed " << kSeed;
}

TEST(SumExperts, AddsInTheOrderOfTheRow) {
  // 2^24 + 1 rounds to 2^24, so the order shows: (2^24 + 1) + 1 = 2^24, but (1 + 1) + 2^24 = 2^24 + 2.
  const at::Tensor weights = at::full({2, 3}, 1.0, at::kFloat);
  const at::Tensor outputs = tensor_of<float>({0x1p24f, 1, 1, 1, 1, 0x1p24f}).view({6, 1});
  EXPECT_EQ(doubles(sum_experts(outputs, weights, at::kFloat)), (std::vector<double>{0x1p24, 0x1p24 + 2}));
}

TEST(Experts, SayWhatDoesNotFit) {
  std::mt19937 random(127);
  const Mixture mixture(2, 8, 4, at::kFloat, random);
  const at::Tensor ids = route_experts(normal({4, 2}, random), zeros(2), 1, 1).experts;
  EXPECT_THROW(run_experts(normal({8, 4}, random).t(), ids, mixture.packed, 1), std::logic_error);
  EXPECT_THROW(run_experts(normal({4, 6}, random), ids, mixture.packed, 1), std::logic_error);
  EXPECT_THROW(run_experts(normal({5, 8}, random), ids, mixture.packed, 1), std::logic_error);
  EXPECT_THROW(sum_experts(normal({4, 8}, random), normal({4, 2}, random), at::kFloat), std::logic_error);
  EXPECT_THROW(pack_experts(0, [&](int64_t) { return GatedWeights{}; }), std::logic_error);
}

}  // namespace
}  // namespace reprise
