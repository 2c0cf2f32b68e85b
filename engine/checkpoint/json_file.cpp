#include "checkpoint/json_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "reprise/error.h"

namespace reprise {

namespace {

// Deeper than any file we read; a bound keeps code that walks the result recursively (error messages) off the stack's
// end.
constexpr int kMaxDepth = 64;

}  // namespace

nlohmann::json parse_json_object(std::string_view text, const std::string& origin) {
  using nlohmann::json;
  std::vector<std::set<std::string>> open_objects;  // names seen so far in each object around the parser's place
  std::string twice;
  bool too_deep = false;
  const json::parser_callback_t watch = [&](int depth, json::parse_event_t event, json& parsed) {
    too_deep = too_deep || depth > kMaxDepth;
    if (too_deep) return false;
    if (event == json::parse_event_t::object_start) {
      open_objects.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      open_objects.pop_back();
    } else if (event == json::parse_event_t::key && twice.empty()) {
      const auto& name = parsed.get_ref<const std::string&>();
      if (!open_objects.back().insert(name).second) twice = name;
    }
    return true;
  };
  json object;
  try {
    object = json::parse(text.begin(), text.end(), watch);
  } catch (const json::exception& error) {
    throw std::invalid_argument(concat("[", origin, "] wanted valid JSON but got: ", error.what()));
  }
  REPRISE_REQUIRE(!too_deep, "[", origin, "] wanted JSON nested at most ", kMaxDepth, " deep but got more");
  REPRISE_REQUIRE(twice.empty(), "[", origin, "] wanted every name once but got \"", twice, "\" twice");
  REPRISE_REQUIRE(object.is_object(), "[", origin, "] wanted a JSON object but got ", object.type_name());
  return object;
}

nlohmann::json read_json_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  REPRISE_REQUIRE(in.good(), "[", path, "] wanted a readable file but could not open it");
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  return parse_json_object(text, path);
}

nlohmann::json read_config_file(const std::string& checkpoint_dir) {
  REPRISE_REQUIRE(std::filesystem::is_directory(checkpoint_dir), "[load] wanted a checkpoint folder but got ",
                  checkpoint_dir,
                  std::filesystem::exists(checkpoint_dir) ? ", which is not a folder" : ", which does not exist");
  const std::string path = (std::filesystem::path(checkpoint_dir) / "config.json").string();
  REPRISE_REQUIRE(std::filesystem::exists(path), "[load] wanted a Hugging Face checkpoint but ", checkpoint_dir,
                  " has no config.json");
  return read_json_file(path);
}

}  // namespace reprise
