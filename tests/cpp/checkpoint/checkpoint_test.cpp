#include "checkpoint/checkpoint.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "../temporary_folder.h"
#include "reprise/error.h"
#include "safetensors_bytes.h"

namespace reprise {
namespace {

using testing::complaint;
using testing::raw_bytes;
using testing::RawTensor;
using testing::read_text;
using testing::safetensors_bytes;
using testing::says;
using testing::TemporaryFolder;

const std::string kFixtures = REPRISE_TEST_DATA;

std::vector<float> values_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kFloat).contiguous().view({-1});
  return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
}

// Writes model.safetensors and takes one tensor from it.
at::Tensor take_one(const std::vector<RawTensor>& stored, at::IntArrayRef shape, at::ScalarType dtype) {
  const TemporaryFolder folder;
  folder.write("model.safetensors", safetensors_bytes(stored));
  Checkpoint checkpoint(folder.path());
  at::Tensor tensor = checkpoint.take(stored[0].name, shape, dtype);
  checkpoint.finish();
  return tensor;
}

std::string finish_complaint(Checkpoint& checkpoint) {
  return complaint([&] { checkpoint.finish(); });
}

TEST(Checkpoint, ConvertsPlainDtypes) {
  // 1 + 2^-8 lies midway between two bf16 values and goes to the even one, 1; 1 + 3 * 2^-8 goes up to 1 + 2^-6.
  const std::vector<float> values = {0, -1.5f, 1 + std::exp2(-8.0f), 1 + 3 * std::exp2(-8.0f), 3e38f, 1e-40f};
  const RawTensor f32{"x.weight", "F32", {2, 3}, raw_bytes(values)};
  EXPECT_EQ(values_of(take_one({f32}, {2, 3}, at::kFloat)), values);
  const auto rounded = values_of(take_one({f32}, {2, 3}, at::kBFloat16));
  EXPECT_EQ(rounded[1], -1.5f);
  EXPECT_EQ(rounded[2], 1.0f);
  EXPECT_EQ(rounded[3], 1 + std::exp2(-6.0f));

  const RawTensor bf16{"x.weight", "BF16", {3}, raw_bytes<uint16_t>({0x3f80, 0xc040, 0x7f7f})};
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    EXPECT_EQ(values_of(take_one({bf16}, {3}, dtype)), (std::vector<float>{1, -3, 3.3895313892515355e38f}));
  }
  const RawTensor f16{"x.weight", "F16", {3}, raw_bytes<uint16_t>({0x3c00, 0xc200, 0x0001})};
  EXPECT_EQ(values_of(take_one({f16}, {3}, at::kFloat)), (std::vector<float>{1, -3, std::exp2(-24.0f)}));
  const RawTensor f64{"x.weight", "F64", {2}, raw_bytes<double>({0.1, -2})};
  EXPECT_EQ(values_of(take_one({f64}, {2}, at::kFloat)), (std::vector<float>{0.1f, -2}));
}

TEST(Checkpoint, Fp8BlocksAgreeWithTorch) {
  // Every E4M3 code but the two NaNs, in a matrix whose last blocks are ragged: [40, 50] with 2x2 scales.
  std::vector<uint8_t> codes(40 * 50);
  for (size_t i = 0; i < codes.size(); ++i)
    codes[i] = static_cast<uint8_t>(i * 7 % 254 < 127 ? i * 7 % 254 : i * 7 % 254 + 1);
  const std::vector<uint8_t> exponents = {127, 120, 130, 1};  // 1, 2^-7, 8, 2^-126
  const at::Tensor torch_values =
      at::from_blob(codes.data(), {40, 50}, at::TensorOptions().dtype(at::kFloat8_e4m3fn)).to(at::kFloat);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor got = take_one(
        {{"x.weight", "F8_E4M3", {40, 50}, raw_bytes(codes)}, {"x.scale", "F8_E8M0", {2, 2}, raw_bytes(exponents)}},
        {40, 50}, dtype);
    at::Tensor want = torch_values.clone();
    for (int64_t i = 0; i < 4; ++i) {
      want.slice(0, i / 2 * 32, i / 2 * 32 + 32)
          .slice(1, i % 2 * 32, i % 2 * 32 + 32)
          .mul_(std::ldexp(1.0, exponents[static_cast<size_t>(i)] - 127));
    }
    EXPECT_TRUE(got.equal(want.to(dtype))) << dtype;
  }
}

TEST(Checkpoint, Fp8RowsScaleEachRow) {
  const std::vector<uint8_t> ones(3 * 64, 0x38);  // 1.0
  const std::vector<uint8_t> exponents = {127, 128, 129, 130, 131, 132};
  const at::Tensor got = take_one(
      {{"x.weight", "F8_E4M3", {3, 64}, raw_bytes(ones)}, {"x.scale", "F8_E8M0", {3, 2}, raw_bytes(exponents)}},
      {3, 64}, at::kFloat);
  const auto values = values_of(got);
  for (size_t row = 0; row < 3; ++row) {
    for (size_t column = 0; column < 64; ++column) {
      EXPECT_EQ(values[row * 64 + column], std::exp2(static_cast<float>(2 * row + column / 32)))
          << row << ", " << column;
    }
  }
}

TEST(Checkpoint, Fp4UnpacksTheEvenColumnFromTheLowNibble) {
  // Byte j holds code j mod 16 at column 2j and its sign-flipped twin at column 2j + 1.
  std::vector<uint8_t> packed(2 * 32);
  for (size_t i = 0; i < packed.size(); ++i) packed[i] = static_cast<uint8_t>((i % 16) | (((i % 16) ^ 8) << 4));
  const std::vector<uint8_t> exponents = {127, 128, 126, 137};  // 1, 2 | 0.5, 1024
  const float levels[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  const float scales[] = {1, 2, 0.5f, 1024};
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto values = values_of(
        take_one({{"x.weight", "I8", {2, 32}, raw_bytes(packed)}, {"x.scale", "F8_E8M0", {2, 2}, raw_bytes(exponents)}},
                 {2, 64}, dtype));
    for (size_t i = 0; i < 128; ++i) {
      const float want = levels[i / 2 % 16] * scales[i / 32] * (i % 2 == 0 ? 1.0f : -1.0f);
      EXPECT_EQ(values[i], want) << i;
      EXPECT_EQ(std::signbit(values[i]), std::signbit(want)) << i;
    }
  }
}

TEST(Checkpoint, ReadsTheQuantizedFixture) {
  // Values from Python: safetensors + torch's float8 types, and E2M1 by table.
  Checkpoint checkpoint(kFixtures + "/v41-tiny-quant");
  struct Case {
    const char* name;
    std::vector<int64_t> shape;
    std::vector<float> first;
    double absolute_sum;
  };
  for (const auto& [name, shape, first, absolute_sum] : std::vector<Case>{
           {"layers.0.attn.wq_b.weight", {128, 32}, {-0.3125f, -0.109375f, 0.05859375f, 0.140625f}, 695.6562805175781},
           {"layers.1.engram.embed.weight",
            {272, 32},
            {-0.171875f, -0.05078125f, 0.4375f, 0.05859375f},
            1457.5746879577637},
           {"layers.1.engram.wkv.weight", {320, 128}, {0.046875f, 0.09375f, 0.15625f, 0.15625f}, 3464.7054862976074},
           {"layers.3.ffn.experts.2.w2.weight", {64, 32}, {0.25f, 0.125f, -0.125f, -0.0625f}, 338.9375},
       }) {
    const at::Tensor tensor = checkpoint.take(name, shape, at::kFloat);
    const auto values = values_of(tensor);
    EXPECT_EQ(std::vector<float>(values.begin(), values.begin() + 4), first) << name;
    EXPECT_DOUBLE_EQ(tensor.abs().sum(at::kDouble).item().toDouble(), absolute_sum) << name;
  }
}

TEST(Checkpoint, TakesIntoAPartOfALargerTensor) {
  const TemporaryFolder folder;
  folder.write("model.safetensors", safetensors_bytes({{"a", "F32", {2}, raw_bytes<float>({1, 2})},
                                                       {"b", "F32", {2}, raw_bytes<float>({3, 4})}}));
  Checkpoint checkpoint(folder.path());
  const at::Tensor both = at::zeros({2, 2}, at::kBFloat16);
  checkpoint.take_into("b", both.select(0, 0));
  checkpoint.take_into("a", both.select(0, 1));
  checkpoint.finish();
  EXPECT_EQ(values_of(both), (std::vector<float>{3, 4, 1, 2}));
}

TEST(Checkpoint, ListsEverythingThatDoesNotFit) {
  const TemporaryFolder folder;
  const std::string ones(32 * 32, '\x38');
  folder.write("model.safetensors", safetensors_bytes({
                                        {"good", "F32", {1}, raw_bytes<float>({1})},
                                        {"narrow", "F32", {2, 2}, std::string(16, '\0')},
                                        {"counts", "I32", {1}, raw_bytes<int32_t>({1})},
                                        {"bare.weight", "F8_E4M3", {32, 32}, ones},
                                        {"nan.weight", "F8_E4M3", {32, 32}, ones},
                                        {"nan.scale", "F8_E8M0", {1, 1}, "\xff"},
                                        {"odd.weight", "F8_E4M3", {32, 32}, ones},
                                        {"odd.scale", "F8_E8M0", {2, 2}, "aaaa"},
                                        {"typed.weight", "I8", {2, 16}, std::string(32, '\0')},
                                        {"typed.scale", "F32", {2, 1}, std::string(8, '\0')},
                                        {"packed.weight", "I8", {2, 16}, std::string(32, '\0')},
                                        {"packed.scale", "F8_E8M0", {2, 1}, "aa"},
                                        {"plain.weight", "F32", {1}, raw_bytes<float>({1})},
                                        {"plain.scale", "F8_E8M0", {1}, "a"},
                                        {"stranger.weight", "F32", {1}, raw_bytes<float>({1})},
                                    }));
  Checkpoint checkpoint(folder.path());
  checkpoint.take("good", {1}, at::kFloat);
  EXPECT_EQ(checkpoint.take("absent.one", {3, 5}, at::kBFloat16).sizes(), at::IntArrayRef({3, 5}));
  checkpoint.take("absent.two", {1}, at::kFloat);
  EXPECT_EQ(checkpoint.take("narrow", {2, 3}, at::kFloat).sizes(), at::IntArrayRef({2, 3}));
  checkpoint.take("counts", {1}, at::kFloat);
  for (const char* name : {"bare.weight", "nan.weight", "odd.weight"}) checkpoint.take(name, {32, 32}, at::kFloat);
  checkpoint.take("typed.weight", {2, 32}, at::kFloat);
  checkpoint.take("packed.weight", {2, 16}, at::kFloat);
  checkpoint.take("plain.weight", {1}, at::kFloat);
  const std::string said = finish_complaint(checkpoint);
  EXPECT_TRUE(says(said, folder.path()));
  EXPECT_TRUE(says(said, "2 missing: absent.one, absent.two"));
  EXPECT_TRUE(says(said, "narrow: wanted shape [2, 3] but got [2, 2]"));
  EXPECT_TRUE(says(said, "counts: wanted F32, BF16, F16, F64, F8_E4M3 or packed FP4 in I8 but got I32"));
  EXPECT_TRUE(says(said, "bare.weight: wanted a .scale beside a weight of dtype F8_E4M3"));
  EXPECT_TRUE(says(said, "nan.weight: wanted finite scales but its .scale is NaN at element 0"));
  EXPECT_TRUE(says(said, "odd.weight: wanted its .scale of shape [1, 1] (blocks) or [32, 1] (rows) but got [2, 2]"));
  EXPECT_TRUE(says(said, "typed.weight: wanted its .scale in F8_E8M0 but got F32"));
  EXPECT_TRUE(says(said, "packed.weight: wanted shape [2, 16] but got [2, 32] (unpacked)"));
  EXPECT_TRUE(says(said, "2 unknown: plain.scale, stranger.weight"));
}

// Sizes of a config that lies end loading with the list so far, not with a failed allocation.
TEST(Checkpoint, RefusesSizesThatTheFilesCannotHold) {
  const TemporaryFolder folder;
  folder.write("model.safetensors", safetensors_bytes({{"narrow", "F32", {2, 2}, std::string(16, '\0')},
                                                       {"wide", "F32", {2, 2}, std::string(16, '\0')}}));
  const int64_t huge = int64_t{1} << 31;
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{huge, huge}, {huge * huge, huge}, {huge, 288}, {-8, 4}}) {
    Checkpoint checkpoint(folder.path());
    checkpoint.take("narrow", {2, 3}, at::kFloat);
    const std::string said = complaint([&] { checkpoint.take("wide", shape, at::kFloat); });
    EXPECT_TRUE(says(said, "narrow: wanted shape [2, 3] but got [2, 2]"));
    EXPECT_TRUE(says(said, concat("wide: wanted shape ", at::IntArrayRef(shape), " but got [2, 2]")));
    EXPECT_FALSE(says(said, "unknown"));
  }
  // So do many sizes that would pass by themselves.
  Checkpoint checkpoint(folder.path());
  std::string said;
  for (int i = 0; i < 100 && said.empty(); ++i) {
    said = complaint([&] { checkpoint.take(concat("absent.", i), {1 << 20, 1 << 4}, at::kFloat); });
  }
  EXPECT_TRUE(says(said, "missing: absent.0, absent.1"));
}

TEST(Checkpoint, PassesOverOtherModalitiesWithANotice) {
  const TemporaryFolder folder;
  const std::string one = raw_bytes<float>({1});
  folder.write("model.safetensors", safetensors_bytes({{"mtp.0.norm.weight", "F32", {1}, one},
                                                       {"mtp.0.head.weight", "F32", {1}, one},
                                                       {"vision.patch", "F32", {1}, one},
                                                       {"aligner.w1", "F32", {1}, one},
                                                       {"image_newline", "F32", {1}, one},
                                                       {"bias", "F32", {1}, one},
                                                       {"bias_vl", "F32", {1}, one}}));
  Checkpoint checkpoint(folder.path());
  checkpoint.take("bias", {1}, at::kFloat);
  checkpoint.skip("bias_vl");
  checkpoint.skip("absent");
  checkpoint.finish();
  EXPECT_EQ(checkpoint.notice(), "passed over 2 drafter tensors, 3 vision tensors");
  EXPECT_EQ(checkpoint.total_bytes(), 8);
  EXPECT_FALSE(checkpoint.has("mtp.0.norm.weight"));
}

TEST(Checkpoint, ReportsProgressInBytes) {
  std::vector<std::pair<int64_t, int64_t>> calls;
  const TemporaryFolder folder;
  folder.write("model.safetensors", safetensors_bytes({{"a", "F32", {3}, std::string(12, '\0')},
                                                       {"q.weight", "F8_E4M3", {32, 32}, std::string(1024, '\0')},
                                                       {"q.scale", "F8_E8M0", {1, 1}, "\x7f"}}));
  Checkpoint checkpoint(folder.path(), [&](int64_t done, int64_t total) { calls.emplace_back(done, total); });
  checkpoint.take("a", {3}, at::kFloat);
  checkpoint.take("q.weight", {32, 32}, at::kFloat);
  EXPECT_EQ(calls, (std::vector<std::pair<int64_t, int64_t>>{{12, 1037}, {1037, 1037}}));
}

// A scale may lie in another shard than its weight.
TEST(Checkpoint, ReadsShards) {
  const TemporaryFolder folder;
  folder.write("one.safetensors", safetensors_bytes({{"x.weight", "F8_E4M3", {1, 32}, std::string(32, '\x38')}}));
  folder.write("two.safetensors",
               safetensors_bytes({{"x.scale", "F8_E8M0", {1, 1}, "\x80"}, {"y", "F32", {1}, raw_bytes<float>({5})}}));
  folder.write("model.safetensors.index.json",
               R"({"metadata": {"total_size": 37}, "weight_map": {"x.weight": "one.safetensors",
                   "x.scale": "two.safetensors", "y": "two.safetensors"}})");
  Checkpoint checkpoint(folder.path());
  EXPECT_EQ(values_of(checkpoint.take("x.weight", {1, 32}, at::kFloat)), std::vector<float>(32, 2.0f));
  EXPECT_EQ(values_of(checkpoint.take("y", {1}, at::kFloat)), std::vector<float>{5});
  checkpoint.finish();
}

TEST(Checkpoint, RefusesAnIndexThatLies) {
  const TemporaryFolder folder;
  folder.write("one.safetensors", safetensors_bytes({{"a", "F32", {1}, "aaaa"}, {"b", "F32", {1}, "aaaa"}}));
  folder.write("two.safetensors", safetensors_bytes({{"c", "F32", {1}, "aaaa"}}));
  folder.write("twin.safetensors", safetensors_bytes({{"a", "F32", {1}, "aaaa"}}));
  const auto with_index = [&](const std::string& index) {
    folder.write("model.safetensors.index.json", index);
    return complaint([&] { Checkpoint checkpoint(folder.path()); });
  };
  EXPECT_EQ(with_index(R"({"weight_map": {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}})"),
            "");
  const std::string said =
      with_index(R"({"weight_map": {"a": "one.safetensors", "c": "one.safetensors", "d": "two.safetensors"}})");
  EXPECT_TRUE(says(said, "c is in two.safetensors, not in one.safetensors"));
  EXPECT_TRUE(says(said, "d is in none of the files (named: two.safetensors)"));
  EXPECT_TRUE(says(said, "b is in "));
  EXPECT_TRUE(
      says(with_index(R"({"weight_map": {"a": "one.safetensors", "b": "one.safetensors", "z": "twin.safetensors"}})"),
           "tensor a also stands in"));
  EXPECT_TRUE(says(with_index(R"({"weight_map": {"a": "gone.safetensors"}})"), "not there: gone.safetensors"));
  EXPECT_TRUE(says(with_index(R"({"weight_map": {"a": "../one.safetensors"}})"), "a file in the same folder"));
  EXPECT_TRUE(says(with_index(R"({"weight_map": {"a": 1}})"), "wanted a file name but got 1"));
  EXPECT_TRUE(says(with_index(R"({"weight_map": {"a": "one.safetensors", "a": "two.safetensors"}})"), "\"a\" twice"));
  EXPECT_TRUE(says(with_index("{}"), "weight_map"));
}

TEST(Checkpoint, SaysWhichFilesItLookedFor) {
  const TemporaryFolder folder;
  EXPECT_TRUE(says(complaint([&] { Checkpoint checkpoint(folder.path()); }),
                   "wanted model.safetensors or model.safetensors.index.json in " + folder.path()));
}

TEST(Checkpoint, RefusesWeightsThatAreNotFinite) {
  const auto said = [](const std::vector<RawTensor>& stored, at::IntArrayRef shape, at::ScalarType dtype) {
    return complaint([&] { take_one(stored, shape, dtype); });
  };
  std::vector<float> values(70000, 1);
  values[66000] = NAN;
  values[69999] = -INFINITY;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    EXPECT_TRUE(says(said({{"x.weight", "F32", {70000}, raw_bytes(values)}}, {70000}, dtype),
                     "x.weight: wanted finite values but element 66000 is nan"));
  }
  values[66000] = 1;
  EXPECT_TRUE(says(said({{"x.weight", "F32", {70000}, raw_bytes(values)}}, {70000}, at::kFloat),
                   "element 69999 is -inf in float32 in /"));
  EXPECT_TRUE(says(said({{"x", "BF16", {3}, raw_bytes<uint16_t>({0, 0x7f80, 0xffff})}}, {3}, at::kBFloat16),
                   "x: wanted finite values but element 1 is inf in bfloat16"));
  EXPECT_TRUE(says(said({{"x", "F16", {1}, raw_bytes<uint16_t>({0x7c00})}}, {1}, at::kFloat), "element 0 is inf"));
  // Finite where they are stored, too large for what they become.
  EXPECT_TRUE(says(said({{"x", "F64", {1}, raw_bytes<double>({1e300})}}, {1}, at::kFloat), "element 0 is inf"));
  EXPECT_TRUE(says(said({{"x", "F32", {1}, raw_bytes<float>({3.4e38f})}}, {1}, at::kBFloat16), "element 0 is inf"));
  const RawTensor eights{"x.weight", "F8_E4M3", {1, 64}, std::string(64, '\x50')};  // 8
  EXPECT_TRUE(says(said({eights, {"x.scale", "F8_E8M0", {1, 2}, "\x7f\xfe"}}, {1, 64}, at::kFloat),
                   "element 32 is inf"));  // 8 * 2^127
  std::string codes(64, '\x50');
  codes[63] = '\xff';
  EXPECT_TRUE(says(said({{"x.weight", "F8_E4M3", {1, 64}, codes}, {"x.scale", "F8_E8M0", {1, 2}, "\x7f\x7f"}}, {1, 64},
                        at::kBFloat16),
                   "element 63 is nan"));
  EXPECT_TRUE(says(said({{"x.weight", "I8", {1, 16}, std::string(16, '\x77')}, {"x.scale", "F8_E8M0", {1, 1}, "\xfe"}},
                        {1, 32}, at::kFloat),
                   "element 0 is inf"));  // 6 * 2^127
  EXPECT_EQ(said({{"x.weight", "I8", {1, 16}, std::string(16, '\x22')}, {"x.scale", "F8_E8M0", {1, 1}, "\xfe"}},
                 {1, 32}, at::kFloat),
            "");  // 1 * 2^127
}

// An unknown dtype stops a load where the tensor is wanted, not where it is passed over.
TEST(Checkpoint, PassesOverTensorsOfUnknownDtypes) {
  const TemporaryFolder folder;
  const std::string one = raw_bytes<float>({1});
  folder.write("model.safetensors", safetensors_bytes({{"mtp.0.head.weight", "F4_NEW", {3, 7}, "odd"},
                                                       {"vision.patch", "C64", {1}, "complex!"},
                                                       {"a", "F32", {1}, one},
                                                       {"b", "F6_E3M2", {4}, "xyz"}}));
  Checkpoint checkpoint(folder.path());
  checkpoint.take("a", {1}, at::kFloat);
  checkpoint.skip("b");
  checkpoint.finish();
  EXPECT_EQ(checkpoint.notice(), "passed over 1 drafter tensors, 1 vision tensors");
  Checkpoint again(folder.path());
  again.take("b", {4}, at::kFloat);
  EXPECT_TRUE(
      says(finish_complaint(again), "b: wanted F32, BF16, F16, F64, F8_E4M3 or packed FP4 in I8 but got F6_E3M2"));
}

std::string runtime_error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(Checkpoint, SaysWhenAFileChangesWhileItLoads) {
  const TemporaryFolder folder;
  const std::string file = safetensors_bytes({{"x", "BF16", {4, 1024}, std::string(8192, 'a')}, {"y", "U8", {1}, "a"}});
  folder.write("model.safetensors", file);
  {
    Checkpoint checkpoint(folder.path());
    std::filesystem::resize_file(folder / "model.safetensors", file.size() - 4096);
    const std::string said = runtime_error_of([&] { checkpoint.take("x", {4, 1024}, at::kBFloat16); });
    EXPECT_TRUE(says(said, folder / "model.safetensors"));
    EXPECT_TRUE(says(said, "it was cut short while it was read"));
  }
  folder.write("model.safetensors", file);
  Checkpoint checkpoint(folder.path());
  checkpoint.take("x", {4, 1024}, at::kBFloat16);
  checkpoint.skip("y");
  std::filesystem::resize_file(folder / "model.safetensors", file.size() + 1);
  EXPECT_TRUE(
      says(runtime_error_of([&] { checkpoint.finish(); }), "model.safetensors] was written to while it was read"));
}

TEST(Checkpoint, SaysWhatStandsInThePlaceOfAFile) {
  struct Case {
    std::function<void(const std::string& path)> make;
    std::string said;
  };
  for (const auto& [make, said] : std::vector<Case>{
           {[](auto& path) { std::filesystem::create_directory(path); }, "wanted a regular file but got a folder"},
           {[](auto& path) { ::mkfifo(path.c_str(), 0600); }, "wanted a regular file but got a pipe"},
           {[](auto& path) { std::filesystem::create_symlink("/dev/zero", path); }, "but got a device"},
           {[](auto& path) { std::filesystem::create_symlink(path, path); },
            "but got: a link that leads back to itself"},
           {[](auto& path) { std::filesystem::create_symlink("../blobs/1a2b", path); },
            "but got: a link to nothing (../blobs/1a2b); is the download complete?"},
           {[](auto& path) {
              std::ofstream(path) << "version https://git-lfs.github.com/spec/v1\noid sha256:1a\nsize 9\n";
            },
            "got a Git LFS pointer to it; run `git lfs pull`"},
       }) {
    for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
      const TemporaryFolder folder;
      make(folder / name);
      const std::string got = complaint([&] { Checkpoint checkpoint(folder.path()); });
      EXPECT_TRUE(says(got, "[" + folder / name + "] "));
      EXPECT_TRUE(says(got, said));
    }
  }
  const TemporaryFolder folder;
  folder.write("model.safetensors.index.json", "{\"weight_map\": {\"a\": \"" + std::string(300, 'n') + "\"}}");
  EXPECT_TRUE(says(complaint([&] { Checkpoint checkpoint(folder.path()); }),
                   "nnn] wanted a regular file but got: File name too long"));
}

TEST(Checkpoint, KeepsNoMappingOfItsFiles) {
  const TemporaryFolder folder;
  folder.write("model.safetensors", safetensors_bytes({{"x", "BF16", {64, 1024}, std::string(64 * 2048, 'a')}}));
  Checkpoint checkpoint(folder.path());
  const at::Tensor x = checkpoint.take("x", {64, 1024}, at::kBFloat16);
  checkpoint.finish();
  EXPECT_EQ(read_text("/proc/self/maps").find(folder.path()), std::string::npos);
}

}  // namespace
}  // namespace reprise
