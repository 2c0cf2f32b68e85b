// The small layers: which weights they take by which names, and how they put the kernels together.
#include <gtest/gtest.h>

#include "layers/engram.h"
#include "layers/hyper_connection.h"
#include "layers/moe.h"
#include "layers/row_buffers.h"
#include "random_weights.h"

namespace reprise {
namespace {

using Names = std::set<std::string>;

TEST(MixtureOfExpertsLayer, RoutesInFloat32AndAddsTheSharedExpert) {
  constexpr unsigned kSeed = 141;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  ModelConfig c;
  c.hidden_size = 24;
  c.moe_intermediate_size = 20;
  c.n_routed_experts = 5;
  c.num_experts_per_tok = 2;
  c.routed_scaling_factor = 1.5;
  c.swiglu_limit = 1;
  RandomWeights weights(kSeed);
  const MixtureOfExperts moe(c, "layers.3.ffn", weights, at::kFloat);
  Names wanted_names{"layers.3.ffn.gate.weight", "layers.3.ffn.gate.bias"};
  for (const std::string expert : {"experts.0", "experts.1", "experts.2", "experts.3", "experts.4", "shared_experts"}) {
    for (const std::string part : {".w1.weight", ".w2.weight", ".w3.weight"})
      wanted_names.insert("layers.3.ffn." + expert + part);
  }
  EXPECT_EQ(weights.names(), wanted_names);
  EXPECT_EQ(weights.skipped(), (Names{"layers.3.ffn.gate.bias_vl"}));

  const at::Tensor x = normal({13, 24}, random);
  const at::Tensor wide = x.to(at::kDouble);
  const auto expert = [&](const std::string& name) {
    const at::Tensor gate = wide.matmul(weights["layers.3.ffn." + name + ".w1.weight"].t()).clamp_max(1);
    const at::Tensor up = wide.matmul(weights["layers.3.ffn." + name + ".w3.weight"].t()).clamp(-1, 1);
    return gate.mul(gate.sigmoid()).mul(up).matmul(weights["layers.3.ffn." + name + ".w2.weight"].t());
  };
  const at::Tensor scores = wide.matmul(weights["layers.3.ffn.gate.weight"].t()).exp().log1p().sqrt();
  const at::Tensor chosen = std::get<1>(scores.add(weights["layers.3.ffn.gate.bias"]).topk(2, -1));
  const at::Tensor share = at::full({13, 5}, 0.0, at::kDouble)
                               .scatter(1, chosen, 1.5)
                               .mul(scores)
                               .div(scores.gather(1, chosen).sum(-1, true));
  at::Tensor wanted = expert("shared_experts");
  for (int64_t e = 0; e < 5; ++e)
    wanted = wanted.add(expert("experts." + std::to_string(e)).mul(share.narrow(1, e, 1)));
  expect_close(moe.forward(x), doubles(wanted), kFloatTolerance);

  RandomWeights half(kSeed);
  const MixtureOfExperts small(c, "ffn", half, at::kBFloat16);
  EXPECT_EQ(half.dtype_of("ffn.gate.weight"), at::kFloat) << "the router stays in float32";
  EXPECT_EQ(half.dtype_of("ffn.experts.0.w1.weight"), at::kBFloat16);
  EXPECT_EQ(small.forward(x.to(at::kBFloat16)).scalar_type(), at::kBFloat16);
}

TEST(EngramLayer, LooksUpProjectsAndGates) {
  constexpr unsigned kSeed = 142;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  ModelConfig c;
  c.hidden_size = 16;
  c.hc_mult = 3;
  c.engram_max_ngram_size = 3;
  c.engram_n_heads = 2;
  c.engram_head_dim = 6;
  c.rms_norm_eps = 1e-6;
  RandomWeights weights(kSeed);
  const Engram engram(c, "layers.1.engram", 50, weights, at::kFloat);
  EXPECT_EQ(weights.names(), (Names{"layers.1.engram.embed.weight", "layers.1.engram.wkv.weight",
                                    "layers.1.engram.q_weight", "layers.1.engram.k_weight"}));
  const std::vector<int64_t> rows{3, 49, 0, 7, 7, 7, 1, 2};
  at::Tensor residual = normal({2, 3, 16}, random);
  const at::Tensor x = residual.to(at::kDouble);
  const at::Tensor memory = weights["layers.1.engram.embed.weight"]
                                .index_select(0, tensor_of(rows))
                                .reshape({2, 24})
                                .matmul(weights["layers.1.engram.wkv.weight"].t());
  const at::Tensor key = memory.narrow(1, 0, 48).reshape({2, 3, 16}), value = memory.narrow(1, 48, 16).unsqueeze(1);
  const auto inverse_rms = [](const at::Tensor& z) { return z.square().mean(-1, true).add(1e-6).rsqrt(); };
  const at::Tensor d = x.mul(weights["layers.1.engram.q_weight"])
                           .mul(weights["layers.1.engram.k_weight"])
                           .mul(key)
                           .sum(-1, true)
                           .mul(inverse_rms(x))
                           .mul(inverse_rms(key))
                           .div(4);  // sqrt 16
  const at::Tensor wanted = x.add(d.sign().mul(d.abs().clamp_min(1e-6).sqrt()).sigmoid().mul(value));
  engram.forward(tensor_of(rows).view({2, 4}), residual);
  expect_close(residual, doubles(wanted), kFloatTolerance);
}

TEST(HyperConnectionLayer, TakesItsWeightsAndTheConfigsConstants) {
  constexpr unsigned kSeed = 143;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  ModelConfig c;
  c.hidden_size = 12;
  c.hc_mult = 2;
  c.hc_sinkhorn_iters = 2;
  c.hc_eps = 0.125;
  c.rms_norm_eps = 0.5;
  RandomWeights weights(kSeed);
  const HyperConnection connection(c, "layers.0.hc_attn", weights);
  EXPECT_EQ(weights.names(), (Names{"layers.0.hc_attn_fn", "layers.0.hc_attn_base", "layers.0.hc_attn_scale"}));
  const at::Tensor residual = normal({7, 2, 12}, random);
  const at::Tensor z = residual.to(at::kDouble).reshape({7, 24});
  const at::Tensor u = z.matmul(weights["layers.0.hc_attn_fn"].t()).mul(z.square().mean(-1, true).add(0.5).rsqrt());
  const at::Tensor scale = weights["layers.0.hc_attn_scale"].repeat_interleave(tensor_of<int64_t>({2, 2, 4}));
  const at::Tensor logits = u.mul(scale).add(weights["layers.0.hc_attn_base"]);
  const StreamMix mix = connection.mix(residual);
  expect_close(mix.pre, doubles(logits.narrow(1, 0, 2).sigmoid().add(0.125)), kFloatTolerance);
  expect_close(mix.post, doubles(logits.narrow(1, 2, 2).sigmoid().mul(2)), kFloatTolerance);
  const auto divided = [](const at::Tensor& m, int64_t axis) { return m.div(m.sum(axis, true).add(0.125)); };
  const at::Tensor comb = divided(logits.narrow(1, 4, 4).reshape({7, 2, 2}).softmax(-1).add(0.125), 1);
  expect_close(mix.comb, doubles(divided(divided(comb, 2), 1)), kFloatTolerance);
}

TEST(RowBuffers, HoldWhatTheModelPublishes) {
  ModelConfig c;
  c.index_topk = 5;
  c.candidate_topk_blocks = 3;
  const RowBuffers none(c, 10);
  EXPECT_FALSE(none.selection.defined() || none.candidates.defined());
  c.kv_source_layer_ids = {1};
  const RowBuffers selection(c, 10);
  EXPECT_EQ(selection.selection.sizes(), (std::vector<int64_t>{10, 5}));
  EXPECT_EQ(selection.selection.scalar_type(), at::kInt);
  EXPECT_FALSE(selection.candidates.defined());
  c.candidate_source_layer_id = 1;
  const RowBuffers both(c, 10);
  EXPECT_EQ(both.candidates.sizes(), (std::vector<int64_t>{10, 3}));
  EXPECT_EQ(both.candidates.scalar_type(), at::kInt);
}

}  // namespace
}  // namespace reprise
