#include "runtime/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "reprise/error.h"

namespace reprise {
namespace {

struct Candidate {
  float logit;
  int32_t token;
};

// Most likely first; equal logits by id. A strict total order, so every cut through it is unambiguous.
bool comes_before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

bool comes_after(const Candidate& a, const Candidate& b) { return comes_before(b, a); }

// Buffers of [V] entries that a step's rows share instead of allocating.
struct Scratch {
  std::vector<Candidate> candidates;
  std::vector<double> weights;
};

Scratch& scratch() {
  thread_local Scratch buffers;
  return buffers;
}

Candidate argmax(std::span<const float> logits) {
  if (logits.empty()) {
    throw std::runtime_error("[sample] wanted a row of logits but got an empty one");
  }
  // Independent lanes, which compilers turn into vectors: one running maximum would be a chain of compares.
  constexpr size_t kLanes = 16;
  std::array<float, kLanes> highest;
  highest.fill(logits[0]);
  std::array<int32_t, kLanes> has_nan{};
  const size_t whole = logits.size() / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float x = logits[i + lane];
      highest[lane] = x > highest[lane] ? x : highest[lane];
      has_nan[lane] |= x != x;
    }
  }
  for (size_t i = whole; i < logits.size(); ++i) {
    highest[0] = std::max(highest[0], logits[i]);
    has_nan[0] |= logits[i] != logits[i];
  }
  const float max_logit = *std::max_element(highest.begin(), highest.end());
  const bool any_nan = std::any_of(has_nan.begin(), has_nan.end(), [](int32_t nan) { return nan != 0; });
  if (any_nan || !std::isfinite(max_logit)) {
    throw std::runtime_error(concat("[sample] wanted logits that form a distribution but got ",
                                    any_nan ? "NaN among them" : concat("a maximum of ", max_logit)));
  }
  const auto first = std::find(logits.begin(), logits.end(), max_logit);
  return {max_logit, static_cast<int32_t>(first - logits.begin())};
}

// Probability of `logit` relative to the most likely token's.
double weight_of(float logit, float max_logit, double temperature) {
  return std::exp((static_cast<double>(logit) - max_logit) / temperature);
}

// The last of the tokens, most likely first, that min_p, top_k and top_p keep.
Candidate last_kept(std::span<const float> logits, const SamplingParams& params, float max_logit) {
  std::vector<Candidate>& candidates = scratch().candidates;
  candidates.clear();
  // exp((x - max) / temperature) >= min_p, without an exponential per token; log(0) keeps everything.
  const double lowest = max_logit + params.temperature * std::log(params.min_p);
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] < lowest) continue;
    candidates.push_back({logits[i], static_cast<int32_t>(i)});
  }
  const auto top_k = static_cast<size_t>(std::max<int64_t>(params.top_k, 0));
  if (top_k > 0 && top_k < candidates.size()) {
    std::nth_element(candidates.begin(), candidates.begin() + static_cast<int64_t>(top_k) - 1, candidates.end(),
                     comes_before);
    candidates.resize(top_k);
  }
  if (params.top_p >= 1.0) return *std::max_element(candidates.begin(), candidates.end(), comes_before);
  double total = 0;
  for (const Candidate& c : candidates) total += weight_of(c.logit, max_logit, params.temperature);
  // A heap rather than a sort: top_p usually ends after a few of many candidates.
  std::make_heap(candidates.begin(), candidates.end(), comes_after);
  Candidate last = candidates.front();
  double mass = 0;
  for (auto end = candidates.end(); end != candidates.begin() && mass < params.top_p * total; --end) {
    std::pop_heap(candidates.begin(), end, comes_after);
    last = *(end - 1);
    mass += weight_of(last.logit, max_logit, params.temperature);
  }
  return last;
}

int32_t draw_token(std::span<const float> logits, const SamplingParams& params, float max_logit, double uniform) {
  const bool filtered = params.min_p > 0 || params.top_p < 1.0 || params.top_k > 0;
  const Candidate last = filtered
                             ? last_kept(logits, params, max_logit)
                             : Candidate{-std::numeric_limits<float>::infinity(), std::numeric_limits<int32_t>::max()};
  // Walked by id whatever the filters, so that a filter which removes nothing changes no draw.
  std::vector<double>& weights = scratch().weights;
  weights.assign(logits.size(), 0.0);
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (comes_after({logits[i], static_cast<int32_t>(i)}, last)) continue;
    weights[i] = weight_of(logits[i], max_logit, params.temperature);
    total += weights[i];
  }
  const double target = uniform * total;
  int32_t chosen = 0;
  double mass = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0.0) continue;
    chosen = static_cast<int32_t>(i);  // the last one stands when rounding leaves the target unreached
    mass += weights[i];
    if (mass > target) break;
  }
  return chosen;
}

}  // namespace

void check_sampling_params(const SamplingParams& params, int64_t vocab_size) {
  REPRISE_REQUIRE(params.max_tokens >= 0, "[sampling] wanted max_tokens >= 0 but got ", params.max_tokens);
  REPRISE_REQUIRE(std::isfinite(params.temperature) && params.temperature >= 0,
                  "[sampling] wanted a finite temperature >= 0 (0 = greedy) but got ", params.temperature);
  REPRISE_REQUIRE(params.top_p > 0 && params.top_p <= 1, "[sampling] wanted 0 < top_p <= 1 but got ", params.top_p);
  REPRISE_REQUIRE(params.top_k >= -1, "[sampling] wanted top_k >= 1, or 0 or -1 for none, but got ", params.top_k);
  REPRISE_REQUIRE(params.min_p >= 0 && params.min_p <= 1, "[sampling] wanted 0 <= min_p <= 1 but got ", params.min_p);
  for (const auto& [name, count] :
       {std::pair{"logprobs", params.logprobs}, {"prompt_logprobs", params.prompt_logprobs}}) {
    REPRISE_REQUIRE(!count || (*count >= -1 && *count <= vocab_size), "[sampling] wanted ", name,
                    " from 0 to the vocabulary's ", vocab_size, ", or -1 for all of it, but got ", *count);
  }
  for (const int32_t id : params.stop_token_ids) {
    REPRISE_REQUIRE(id >= 0 && id < vocab_size, "[sampling] wanted stop_token_ids in [0, ", vocab_size, ") but got ",
                    id);
  }
}

double uniform_draw(uint64_t seed, uint64_t position) {
  std::array<uint32_t, 4> counter{static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0};
  std::array<uint32_t, 2> key{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  const uint64_t bits = (uint64_t{counter[0]} << 32) | counter[1];
  return static_cast<double>(bits >> 11) * 0x1.0p-53;  // the 53 bits a double in [0, 1) can hold
}

SampledToken sample_row(std::span<const float> logits, const SamplingParams& params, uint64_t seed, uint64_t position) {
  const Candidate best = argmax(logits);
  SampledToken sampled;
  sampled.token =
      params.temperature == 0 ? best.token : draw_token(logits, params, best.logit, uniform_draw(seed, position));
  if (params.logprobs) sampled.logprobs = logprobs_of(logits, sampled.token, *params.logprobs);
  return sampled;
}

TokenLogprobs logprobs_of(std::span<const float> logits, int32_t token, int64_t count) {
  REPRISE_ENSURE(token >= 0 && static_cast<size_t>(token) < logits.size(), "token ", token, " of ", logits.size());
  const float max_logit = argmax(logits).logit;
  const Candidate chosen{logits[token], token};
  std::vector<Candidate>& candidates = scratch().candidates;
  candidates.clear();
  double total = 0;
  int32_t rank = 1;
  for (size_t i = 0; i < logits.size(); ++i) {
    total += weight_of(logits[i], max_logit, 1.0);
    const Candidate candidate{logits[i], static_cast<int32_t>(i)};
    rank += comes_before(candidate, chosen);
    if (count != 0) candidates.push_back(candidate);
  }
  const double log_total = max_logit + std::log(total);
  const size_t listed = count < 0 ? candidates.size() : std::min(candidates.size(), static_cast<size_t>(count));
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<int64_t>(listed), candidates.end(),
                    comes_before);

  TokenLogprobs entries;
  entries.reserve(listed + 1);
  entries.push_back({token, static_cast<float>(chosen.logit - log_total), rank});
  for (size_t i = 0; i < listed; ++i) {
    if (candidates[i].token == token) continue;
    entries.push_back(
        {candidates[i].token, static_cast<float>(candidates[i].logit - log_total), static_cast<int32_t>(i) + 1});
  }
  return entries;
}

}  // namespace reprise
