#include "checkpoint/json_file.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "checkpoint/regular_file.h"
#include "reprise/error.h"

namespace reprise {

namespace {

// Deeper than any file we read; a bound keeps code that walks the result recursively (error messages) off the stack's
// end.
constexpr int kMaxDepth = 64;
constexpr uint64_t kMaxBytes = 100000000;  // as of a safetensors header; the largest index is a tenth of it

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
  return parse_json_object(read_text_file(path, kMaxBytes), path);
}

nlohmann::json read_config_file(const std::string& checkpoint_dir) {
  std::error_code ignored;  // of a link that leads nowhere, a name too long
  REPRISE_REQUIRE(
      std::filesystem::is_directory(checkpoint_dir, ignored), "[load] wanted a checkpoint folder but got ",
      checkpoint_dir,
      std::filesystem::exists(checkpoint_dir, ignored) ? ", which is not a folder" : ", which does not exist");
  const std::string path = (std::filesystem::path(checkpoint_dir) / "config.json").string();
  REPRISE_REQUIRE(stands_at(path), "[load] wanted a Hugging Face checkpoint but ", checkpoint_dir,
                  " has no config.json");
  return read_json_file(path);
}

}  // namespace reprise
