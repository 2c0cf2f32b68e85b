#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <random>
#include <span>
#include <string>
#include <vector>

#include "../temporary_folder.h"
#include "reprise/error.h"
#include "safetensors_bytes.h"

namespace reprise {
namespace {

using testing::complaint;
using testing::raw_bytes;
using testing::read_text;
using testing::safetensors_bytes;
using testing::says;
using testing::TemporaryFolder;

// What reading a file of these bytes complains about.
std::string complaint_about(const std::string& bytes) {
  const TemporaryFolder folder;
  folder.write("some.safetensors", bytes);
  return complaint([&] { SafetensorsFile file(folder / "some.safetensors"); });
}

TEST(Safetensors, ReadsShapesDtypesAndBytes) {
  const TemporaryFolder folder;
  folder.write("a.safetensors", safetensors_bytes({{"x", "F32", {2, 3}, raw_bytes<float>({0, 1, 2, 3, 4, 5})},
                                                   {"empty", "BF16", {0, 7}, ""},
                                                   {"scalar", "I64", {}, raw_bytes<int64_t>({-3})}}));
  const SafetensorsFile file(folder / "a.safetensors");
  ASSERT_EQ(file.tensors().size(), 3u);
  const auto& x = file.tensors().at("x");
  EXPECT_EQ(x.dtype, StoredDtype::kF32);
  EXPECT_EQ(x.shape, (std::vector<int64_t>{2, 3}));
  std::vector<float> values(6);
  ASSERT_EQ(x.bytes, 24u);
  x.read(0, std::as_writable_bytes(std::span(values)));
  EXPECT_EQ(values, (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(file.tensors().at("empty").bytes, 0u);
  EXPECT_TRUE(file.tensors().at("scalar").shape.empty());
}

TEST(Safetensors, ReadsTheFixtures) {
  for (const auto& [name, count] : {std::pair("v41-tiny", 358), std::pair("v41-tiny-quant", 567)}) {
    const SafetensorsFile file(std::string(REPRISE_TEST_DATA) + "/" + name + "/model.safetensors");
    EXPECT_EQ(file.tensors().size(), static_cast<size_t>(count)) << name;
  }
}

TEST(Safetensors, RefusesAFileThatCannotBeRead) {
  const TemporaryFolder folder;
  EXPECT_TRUE(says(complaint([&] { SafetensorsFile file(folder / "absent"); }),
                   "absent] wanted a regular file but got: No such"));
  EXPECT_TRUE(says(complaint([&] { SafetensorsFile file(folder.path()); }), "wanted a regular file"));
}

TEST(Safetensors, RefusesAFileCutAnywhere) {
  const std::string whole = safetensors_bytes({{"x", "F32", {4}, raw_bytes<float>({1, 2, 3, 4})}});
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_TRUE(says(complaint_about(whole.substr(0, length)), "some.safetensors]")) << length;
  }
  EXPECT_EQ(complaint_about(whole), "");
  EXPECT_TRUE(says(complaint_about(""), "got 0 bytes"));
  EXPECT_TRUE(says(complaint_about(whole.substr(0, whole.size() - 1)), "tensor x wanted data_offsets within"));
}

TEST(Safetensors, RefusesAHeaderLengthThatLies) {
  std::string file = safetensors_bytes("{}", "");
  file[7] = '\x7f';  // 2^62 and more
  EXPECT_TRUE(says(complaint_about(file), "wanted a header of at most 100000000 bytes"));
  file = safetensors_bytes("{}", "");
  file[0] = 100;
  EXPECT_TRUE(says(complaint_about(file), "wanted a header of 100 bytes but the file ends after 2"));
}

TEST(Safetensors, RefusesAHeaderThatLies) {
  const std::string data(16, 'x');
  const auto entry = [](const std::string& name, const std::string& rest) { return "\"" + name + "\":{" + rest + "}"; };
  const std::string good = "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]";
  struct Case {
    std::string header;
    std::string said;
  };
  for (const auto& [header, said] : std::vector<Case>{
           {"{", "wanted valid JSON"},
           {"[1]", "wanted a JSON object"},
           {"{\"a\":3}", "tensor a wanted an object but got 3"},
           {"{\xff}", "wanted valid JSON"},
           {"{" + entry("a", good) + "," + entry("a", good) + "}", "\"a\" twice"},
           {"{" + entry("a", good + ",\"shape\":[1]") + "}", "\"shape\" twice"},
           {"{" + entry("a", "\"shape\":[2],\"data_offsets\":[0,8]") + "}",
            "tensor a wanted a dtype by name but got none"},
           {"{" + entry("a", "\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,24]") + "}",
            "within the file's 16 bytes"},
           {"{" + entry("a", "\"dtype\":\"F32\",\"data_offsets\":[0,8]") + "}", "wanted a field shape"},
           {"{" + entry("a", "\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]") + "}",
            "at least 0 but got [-2]"},
           {"{" + entry("a", "\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]") + "}", "but got [2.0]"},
           {"{" + entry("a", "\"dtype\":\"F32\",\"shape\":[2]") + "}", "wanted a field data_offsets"},
           {"{" + entry("a", "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8]") + "}", "[begin, end] but got [8]"},
           {"{" + entry("a", "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[16,8]") + "}", "but got [16,8]"},
           {"{" + entry("a", "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[16,24]") + "}",
            "within the file's 16 bytes"},
           {"{" + entry("a", "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]") + "}",
            "wanted 4 bytes for shape [1]"},
           {"{" + entry("a", "\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]") + "}",
            "wanted a shape that fits"},
           {"{" +
                entry(
                    "a",
                    "\"dtype\":\"F32\",\"shape\":[0,9223372036854775807,9223372036854775807],\"data_offsets\":[0,0]") +
                "}",
            "wanted a shape that fits"},
           {"{" + entry("a", good) + "," + entry("b", "\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[4,16]") + "}",
            "tensor b wanted to begin where the one before it ends, at 8, but its data_offsets begin at 4"},
           {"{" + entry("a", good) + "," + entry("b", "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[12,16]") + "}",
            "tensor b wanted to begin"},
           {"{" + entry("a", good) + "}", "wanted 8 bytes of data, as the header says, but got 16"},
           {"{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}", "nested at most"},
       }) {
    EXPECT_TRUE(says(complaint_about(safetensors_bytes(header, data)), said)) << header.substr(0, 200);
  }
}

TEST(Safetensors, NamesBytesThatAreNoText) {
  const std::string said = complaint_about(safetensors_bytes("{\"a\xff\xe9\": 1}", ""));
  EXPECT_TRUE(says(said, "some.safetensors: header] wanted valid JSON"));
  EXPECT_TRUE(says(said, "\\xff"));
  EXPECT_EQ(printable("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\t\n"), "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\t\n");
  // Cut characters, a surrogate, a longer spelling than needed, beyond Unicode, an escape sequence, a zero.
  EXPECT_EQ(printable("\xc3"), "\\xc3");
  EXPECT_EQ(printable("\xe2\x82z"), "\\xe2\\x82z");
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");
  EXPECT_EQ(printable("\xc0\xaf\xf4\x90\x80\x80"), "\\xc0\\xaf\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(printable(std::string_view("\x1b[1m\0\x7f", 6)), "\\x1b[1m\\x00\\x7f");
}

// Whatever stands in a file, reading it either works or throws std::invalid_argument.
TEST(Safetensors, SurvivesRandomDamage) {
  const std::string whole = safetensors_bytes(
      {{"x", "F32", {4}, raw_bytes<float>({1, 2, 3, 4})}, {"y", "F8_E4M3", {2, 3}, std::string(6, 'a')}});
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const TemporaryFolder folder;
  for (int round = 0; round < 1000; ++round) {
    std::string damaged = whole;
    for (int i = 0; i < 3; ++i) damaged[random() % damaged.size()] = static_cast<char>(random());
    const std::string name = std::to_string(round);
    folder.write(name, damaged);
    try {
      const SafetensorsFile file(folder / name);
      for (const auto& [tensor_name, tensor] : file.tensors()) EXPECT_LE(tensor.bytes, whole.size()) << tensor_name;
    } catch (const std::invalid_argument&) {
    }
  }
}

}  // namespace
}  // namespace reprise
