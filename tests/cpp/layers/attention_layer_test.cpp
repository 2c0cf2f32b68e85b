#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>

#include "backends/cache_write.h"
#include "layers/attention.h"
#include "layers/cache_layout.h"
#include "random_weights.h"

namespace reprise {
namespace {

constexpr int64_t kPageSize = 8;
constexpr int64_t kPages = 12;  // per request
constexpr int64_t kRatio = 2;

// Layer 0 has a window only; 1 is the KV source and publishes candidates; 2 selects among them; 3 reuses 2's selection.
ModelConfig config() {
  ModelConfig c;
  c.num_hidden_layers = 4;
  c.hidden_size = 40;
  c.num_attention_heads = 4;
  c.head_dim = 32;
  c.qk_rope_head_dim = 8;
  c.q_lora_rank = 24;
  c.o_groups = 2;
  c.o_lora_rank = 16;
  c.sliding_window = 6;
  c.compress_ratios = {0, kRatio, kRatio, kRatio};
  c.kv_source_layer_ids = {1};
  c.index_source_layer_ids = {1, 2};
  c.index_n_heads = 3;
  c.index_head_dim = 32;
  c.index_topk = 4;
  c.candidate_source_layer_id = 1;
  c.candidate_topk_blocks = 3;
  c.candidate_block_size = 2;
  c.rms_norm_eps = 1e-6;
  return c;
}

std::string prefix_of(int64_t layer) { return "layers." + std::to_string(layer) + ".attn"; }

// The layers take what angles they are given: one table for plain windows, another for everything that is compressed.
RopeRows angles(const std::vector<int64_t>& positions, double base) {
  at::Tensor angle = at::empty({static_cast<int64_t>(positions.size()), 4}, at::kDouble);
  for (size_t t = 0; t < positions.size(); ++t) {
    for (int64_t j = 0; j < 4; ++j)
      angle[static_cast<int64_t>(t)][j] = static_cast<double>(positions[t]) * std::pow(base, static_cast<double>(j));
  }
  return {angle.cos().to(at::kFloat), angle.sin().to(at::kFloat)};
}
RopeRows window_angles(const std::vector<int64_t>& positions) { return angles(positions, 0.3); }
RopeRows compressed_angles(const std::vector<int64_t>& positions) { return angles(positions, 0.7); }

struct Chunk {
  int32_t slot;
  int64_t start;
  int64_t rows;
};

// The layers, their caches, and two requests whose pages lie crosswise.
struct Decoder {
  RandomWeights weights;
  std::vector<Attention> layers;
  KvCache cache;
  RowBuffers buffers;

  Decoder(at::ScalarType dtype, bool rounding, unsigned seed)
      : weights(seed),
        cache(make_model_facts(config()), {kPageSize, {1 + 2 * kPages, 1 + 2 * kPages}, 2, dtype, true}),
        buffers(config(), 200) {
    for (int64_t l = 0; l < 4; ++l) layers.emplace_back(config(), l, prefix_of(l), weights, dtype, rounding);
  }

  static int32_t page_of(int32_t slot, int64_t entry) { return static_cast<int32_t>(1 + 2 * entry + slot); }

  static std::shared_ptr<ForwardContext> context_of(const std::vector<Chunk>& chunks) {
    std::vector<int64_t> positions, starts{0}, window_starts, window_slots, published, first_of_group;
    std::vector<int32_t> sequences, slots;
    for (const Chunk& chunk : chunks) {
      for (int64_t p = chunk.start; p < chunk.start + chunk.rows; ++p) {
        const int64_t page = page_of(chunk.slot, p / kPageSize);
        positions.push_back(p);
        sequences.push_back(static_cast<int32_t>(slots.size()));
        window_starts.push_back(std::max<int64_t>(0, p - config().sliding_window + 1));
        window_slots.push_back(page * kPageSize + p % kPageSize);
        const bool completes = (p + 1) % kRatio == 0;
        published.push_back(completes ? page * (kPageSize / kRatio) + p % kPageSize / kRatio : 0);
        first_of_group.push_back(completes ? p - kRatio + 1 : 0);
      }
      slots.push_back(chunk.slot);
      starts.push_back(static_cast<int64_t>(positions.size()));
    }
    at::Tensor table = at::full({2, kPages}, 0, at::kInt);
    for (int32_t slot = 0; slot < 2; ++slot) {
      for (int64_t entry = 0; entry < kPages; ++entry) table[slot][entry] = page_of(slot, entry);
    }
    auto context = std::make_shared<ForwardContext>();
    context->num_rows = static_cast<int64_t>(positions.size());
    context->attention = {
        .positions = tensor_of(positions),
        .sequence_index = tensor_of(sequences),
        .sequence_starts = tensor_of(starts),
        .state_slots = tensor_of(slots),
        .groups = {{table, tensor_of(window_starts)}, {table, {}}},
        .cells = {{tensor_of(window_slots), {}}, {tensor_of(published), compressed_angles(first_of_group)}},
        .ropes = {window_angles(positions), compressed_angles(positions)}};
    return context;
  }

  // inputs[slot][layer] [tokens, H] -> [chunk rows, H] per layer
  std::vector<at::Tensor> run(const std::vector<std::vector<at::Tensor>>& inputs, const std::vector<Chunk>& chunks) {
    const ScopedForwardContext scope(context_of(chunks));
    std::vector<at::Tensor> outputs;
    for (size_t l = 0; l < layers.size(); ++l) {
      std::vector<at::Tensor> parts;
      for (const Chunk& chunk : chunks)
        parts.push_back(inputs[static_cast<size_t>(chunk.slot)][l].narrow(0, chunk.start, chunk.rows));
      const at::Tensor x = at::cat(parts);
      layers[l].publish(x, cache);
      outputs.push_back(layers[l].compute(x, cache, buffers));
    }
    return outputs;
  }
};

std::vector<std::vector<at::Tensor>> random_inputs(at::ScalarType dtype, std::mt19937& random) {
  std::vector<std::vector<at::Tensor>> inputs(2);
  for (auto& request : inputs) {
    for (int l = 0; l < 4; ++l) request.push_back(normal({kPages * kPageSize, config().hidden_size}, random, dtype));
  }
  return inputs;
}

// One request without caches or chunks, in double.
struct Reference {
  const RandomWeights& w;
  std::vector<int64_t> positions;
  at::Tensor compressed, keys;  // of the latest KV source
  std::vector<std::vector<int64_t>> selected, candidates;

  explicit Reference(const RandomWeights& weights, int64_t tokens)
      : w(weights), positions(static_cast<size_t>(tokens)) {
    std::iota(positions.begin(), positions.end(), 0);
  }

  static at::Tensor norm(const at::Tensor& x, const at::Tensor& weight) {
    return x.mul(x.square().mean(-1, true).add(1e-6).rsqrt()).mul(weight);
  }

  at::Tensor linear(const at::Tensor& x, const std::string& name) const { return x.matmul(w[name + ".weight"].t()); }

  // x [T, ..., D]; the angles of row t turn its last 8 channels.
  static at::Tensor rope(const at::Tensor& x, const RopeRows& rows, double direction = 1) {
    at::Tensor y = x.clone();
    const int64_t dim = x.size(-1);
    at::Tensor cos = rows.cos.to(at::kDouble), sin = rows.sin.to(at::kDouble).mul(direction);
    if (x.dim() == 3) cos = cos.unsqueeze(1), sin = sin.unsqueeze(1);
    const at::Tensor a = x.slice(-1, dim - 8, dim, 2), b = x.slice(-1, dim - 7, dim, 2);
    y.slice(-1, dim - 8, dim, 2).copy_(a.mul(cos).sub(b.mul(sin)));
    y.slice(-1, dim - 7, dim, 2).copy_(a.mul(sin).add(b.mul(cos)));
    return y;
  }

  void publish(const std::string& p, const at::Tensor& x) {
    const int64_t groups = x.size(0) / kRatio;
    std::vector<int64_t> first(static_cast<size_t>(groups));
    for (size_t g = 0; g < first.size(); ++g) first[g] = static_cast<int64_t>(g) * kRatio;
    const auto grouped = [&](const std::string& name) {
      return linear(x, p + name).narrow(0, 0, groups * kRatio).reshape({groups, kRatio, 32});
    };
    const at::Tensor latent = norm(grouped(".compressor.wgate").softmax(1).mul(grouped(".compressor.wkv")).sum(1),
                                   w[p + ".compressor.norm.weight"]);
    compressed = rope(latent, compressed_angles(first));
    keys = rope(norm(linear(latent, p + ".indexer.wk"), w[p + ".indexer.k_norm.weight"]), compressed_angles(first));
  }

  static std::vector<int64_t> best(std::vector<std::pair<double, int64_t>> scored, size_t keep) {
    std::stable_sort(scored.begin(), scored.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    scored.resize(std::min(keep, scored.size()));
    std::vector<int64_t> result;
    for (const auto& [score, c] : scored) result.push_back(c);
    std::sort(result.begin(), result.end());
    return result;
  }

  void select(const std::string& p, const at::Tensor& x, const at::Tensor& query_latent, bool source) {
    const at::Tensor q =
        rope(linear(query_latent, p + ".indexer.wq_b").reshape({x.size(0), 3, 32}), compressed_angles(positions));
    const at::Tensor weights = linear(x, p + ".indexer.weights_proj").div(std::sqrt(3.0 * 32.0));
    const at::Tensor scores = q.matmul(keys.t()).relu().mul(weights.unsqueeze(-1)).sum(1);  // [T, groups]
    selected.clear();
    for (int64_t t = 0; t < x.size(0); ++t) {
      std::vector<std::pair<double, int64_t>> scored, blocks;
      for (int64_t c = 0; c < (t + 1) / kRatio; ++c) {
        const auto row = static_cast<size_t>(t);
        if (!source && std::count(candidates[row].begin(), candidates[row].end(), c / 2) == 0) continue;
        const double score = scores[t][c].item<double>();
        scored.emplace_back(score, c);
        if (c % 2 == 0) blocks.emplace_back(score, c / 2);
        if (!blocks.empty()) blocks.back().first = std::max(blocks.back().first, score);
      }
      selected.push_back(best(scored, 4));
      if (!source) continue;
      if (!blocks.empty()) blocks.back().first = std::numeric_limits<double>::infinity();
      candidates.push_back(best(blocks, 3));
    }
  }

  at::Tensor attention(int64_t layer, const at::Tensor& x) {
    const std::string p = prefix_of(layer);
    const int64_t T = x.size(0);
    const RopeRows rows = layer == 0 ? window_angles(positions) : compressed_angles(positions);
    const at::Tensor query_latent = norm(linear(x, p + ".wq_a"), w[p + ".q_norm.weight"]);
    const at::Tensor q = rope(linear(query_latent, p + ".wq_b").reshape({T, 4, 32}), rows);
    const at::Tensor kv = rope(norm(linear(x, p + ".wkv"), w[p + ".kv_norm.weight"]), rows);
    if (layer == 1) publish(p, x);
    if (layer == 1 || layer == 2) select(p, x, query_latent, layer == 1);
    std::vector<at::Tensor> heads;
    for (int64_t t = 0; t < T; ++t) {
      std::vector<at::Tensor> visible;
      for (int64_t c = std::max<int64_t>(0, t - 5); c <= t; ++c) visible.push_back(kv[c]);
      if (layer > 0) {
        for (const int64_t c : selected[static_cast<size_t>(t)]) visible.push_back(compressed[c]);
      }
      const at::Tensor keys_of_row = at::stack(visible);
      const at::Tensor weights = q[t].matmul(keys_of_row.t()).div(std::sqrt(32.0)).exp();  // [N, keys]
      const at::Tensor total = weights.sum(-1, true).add(w[p + ".attn_sink"].exp().unsqueeze(-1));
      heads.push_back(weights.div(total).matmul(keys_of_row));
    }
    const at::Tensor out = rope(at::stack(heads), rows, -1).reshape({T, 2, 64});
    const at::Tensor wo_a = w[p + ".wo_a.weight"].reshape({2, 16, 64});
    const at::Tensor grouped =
        at::stack({out.select(1, 0).matmul(wo_a[0].t()), out.select(1, 1).matmul(wo_a[1].t())}, 1);
    return linear(grouped.reshape({T, 32}), p + ".wo_b");
  }
};

TEST(AttentionLayer, FollowsTheSpecificationInEveryRole) {
  constexpr unsigned kSeed = 131;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  Decoder decoder(at::kFloat, false, kSeed);
  const auto inputs = random_inputs(at::kFloat, random);
  constexpr int64_t kTokens = 41;  // the last group is incomplete
  const auto outputs = decoder.run(inputs, {{1, 0, kTokens}});
  Reference reference(decoder.weights, kTokens);
  for (int64_t l = 0; l < 4; ++l) {
    SCOPED_TRACE(l);
    const auto wanted =
        doubles(reference.attention(l, inputs[1][static_cast<size_t>(l)].narrow(0, 0, kTokens).to(at::kDouble)));
    expect_close(outputs[static_cast<size_t>(l)], wanted, kFloatTolerance);
  }
}

TEST(AttentionLayer, TakesItsWeightsByTheReleasedNames) {
  const Decoder decoder(at::kBFloat16, true, 132);
  const std::vector<std::string> window{"wq_a.weight",    "q_norm.weight", "wq_b.weight", "wkv.weight",
                                        "kv_norm.weight", "attn_sink",     "wo_a.weight", "wo_b.weight"};
  const std::vector<std::string> kv_source{"compressor.wkv.weight", "compressor.wgate.weight", "compressor.norm.weight",
                                           "indexer.wk.weight", "indexer.k_norm.weight"};
  const std::vector<std::string> index_source{"indexer.wq_b.weight", "indexer.weights_proj.weight"};
  std::set<std::string> wanted;
  const auto add = [&](int64_t layer, const std::vector<std::string>& names) {
    for (const auto& name : names) wanted.insert(prefix_of(layer) + "." + name);
  };
  for (int64_t l = 0; l < 4; ++l) add(l, window);
  add(1, kv_source);
  add(1, index_source);
  add(2, index_source);
  EXPECT_EQ(decoder.weights.names(), wanted);
  EXPECT_EQ(decoder.weights.dtype_of(prefix_of(1) + ".compressor.wkv.weight"), at::kFloat)
      << "the compressor stays in float32";
  EXPECT_EQ(decoder.weights.dtype_of(prefix_of(1) + ".wq_a.weight"), at::kBFloat16);
}

// What is cached under rounding is exactly the format's image of what is cached without.
TEST(AttentionLayer, RoundsEachCacheInItsFormat) {
  constexpr unsigned kSeed = 133;
  std::mt19937 random(kSeed);
  const auto inputs = random_inputs(at::kFloat, random);
  Decoder plain(at::kFloat, false, kSeed), rounded(at::kFloat, true, kSeed);
  plain.run(inputs, {{0, 0, 30}});
  rounded.run(inputs, {{0, 0, 30}});
  const auto image = [](const at::Tensor& cells, CacheFormat format) {
    const RopeRows still{at::ones({cells.size(0), 1}), at::zeros({cells.size(0), 1})};
    return rotate_and_round(cells, cells.size(1), still, format).nan_to_num(-1);  // a cell that nobody wrote stays NaN
  };
  for (int64_t l = 0; l < 4; ++l)
    EXPECT_TRUE(same_bits(rounded.cache.cells(kWindowKv, l).nan_to_num(-1),
                          image(plain.cache.cells(kWindowKv, l), CacheFormat::kFp8)))
        << l;
  EXPECT_TRUE(same_bits(rounded.cache.cells(kCompressedKv, 1).nan_to_num(-1),
                        image(plain.cache.cells(kCompressedKv, 1), CacheFormat::kNvfp4)));
  EXPECT_TRUE(same_bits(rounded.cache.cells(kIndexKeys, 1).nan_to_num(-1),
                        image(plain.cache.cells(kIndexKeys, 1), CacheFormat::kMxfp4)));
}

class AttentionLayers : public ::testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, AttentionLayers, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST_P(AttentionLayers, HaveTheSameBitsHoweverTheTokensAreCut) {
  constexpr unsigned kSeed = 134;
  std::mt19937 random(kSeed);
  at::set_num_threads(1);  // hundreds of tiny steps: on a busy machine threads would mostly wait for each other
  const auto inputs = random_inputs(GetParam(), random);
  const int64_t lengths[] = {61, 34};
  std::vector<std::vector<at::Tensor>> wanted;
  for (int32_t slot = 0; slot < 2; ++slot) {
    wanted.push_back(Decoder(GetParam(), true, kSeed).run(inputs, {{slot, 0, lengths[slot]}}));
  }
  for (int trial = 0; trial < 3; ++trial) {
    Decoder decoder(GetParam(), true, kSeed);
    int64_t done[] = {0, 0};
    while (done[0] < lengths[0] || done[1] < lengths[1]) {
      std::vector<Chunk> chunks;
      for (const int32_t slot : {trial % 2, 1 - trial % 2}) {
        const int64_t rows = std::min<int64_t>(lengths[slot] - done[slot], static_cast<int64_t>(random() % 12));
        if (rows > 0) chunks.push_back({slot, done[slot], rows});
      }
      if (chunks.empty()) continue;
      const auto outputs = decoder.run(inputs, chunks);
      int64_t first = 0;
      for (const Chunk& chunk : chunks) {
        for (size_t l = 0; l < 4; ++l) {
          ASSERT_TRUE(same_bits(outputs[l].narrow(0, first, chunk.rows),
                                wanted[static_cast<size_t>(chunk.slot)][l].narrow(0, chunk.start, chunk.rows)))
              << "layer " << l << ", request " << chunk.slot << " from " << chunk.start << ", seed " << kSeed;
        }
        first += chunk.rows;
        done[chunk.slot] += chunk.rows;
      }
    }
  }
}

TEST(AttentionLayer, ASourceWantsSlotsForItsRatio) {
  Decoder decoder(at::kFloat, false, 135);
  const auto context = Decoder::context_of({{0, 0, 4}});
  context->attention.cells[1] = {};
  const ScopedForwardContext scope(context);
  EXPECT_THROW(decoder.layers[1].publish(at::full({4, 40}, 1.0, at::kFloat), decoder.cache), std::logic_error);
}

}  // namespace
}  // namespace reprise
