#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "../temporary_folder.h"
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
  float last = 0;
  ASSERT_EQ(x.data.size(), 24u);
  std::memcpy(&last, x.data.data() + 20, 4);
  EXPECT_EQ(last, 5);
  EXPECT_EQ(file.tensors().at("empty").data.size(), 0u);
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
  EXPECT_TRUE(says(complaint([&] { SafetensorsFile file(folder / "absent"); }), "absent] wanted a readable file"));
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
           {"{" + entry("a", "\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,8]") + "}",
            "F64, I64, U64 but got F31"},
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
      for (const auto& [tensor_name, tensor] : file.tensors())
        EXPECT_LE(tensor.data.size(), whole.size()) << tensor_name;
    } catch (const std::invalid_argument&) {
    }
  }
}

TEST(MappedFile, IsUnmappedAtTheEnd) {
  const TemporaryFolder folder;
  folder.write("pages", std::string(10000, 'p'));
  const auto mapped = [&] { return read_text("/proc/self/maps").find(folder / "pages") != std::string::npos; };
  {
    const MappedFile file(folder / "pages");
    EXPECT_EQ(file.bytes().size(), 10000u);
    EXPECT_TRUE(mapped());
    file.release(file.bytes().subspan(5000, 3000));
    EXPECT_EQ(file.bytes()[6000], std::byte{'p'});  // reads again what was released
  }
  EXPECT_FALSE(mapped());
}

}  // namespace
}  // namespace reprise
