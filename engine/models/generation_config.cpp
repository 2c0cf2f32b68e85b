#include "reprise/generation_config.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/json_file.h"
#include "checkpoint/regular_file.h"
#include "models/config_fields.h"
#include "models/config_reader.h"

namespace reprise {
namespace {

using nlohmann::json;

// A number in [least, most], or above `least` where that end is open.
std::optional<double> read_number(const json& object, const char* field, double least, bool open, double most,
                                  ConfigProblems& problems) {
  const auto found = object.find(field);
  if (found == object.end() || found->is_null()) return std::nullopt;
  if (found->is_number()) {
    const auto value = found->get<double>();
    if ((open ? value > least : value >= least) && value <= most) return value;
  }
  problems.add(field, "wanted a number ", open ? "above " : "of at least ", least, " and at most ", most, " but got ",
               found->dump());
  return std::nullopt;
}

std::vector<std::string> read_stop_strings(const json& object, ConfigProblems& problems) {
  const auto found = object.find("stop_strings");
  if (found == object.end() || found->is_null()) return {};
  const json list = found->is_array() ? *found : json::array({*found});
  std::vector<std::string> strings;
  for (const auto& one : list) {
    if (one.is_string() && !one.get_ref<const std::string&>().empty()) {
      strings.push_back(one.get<std::string>());
    } else {
      problems.add("stop_strings", "wanted text or a list of texts, none of them empty, but got ", found->dump());
      return {};
    }
  }
  return strings;
}

}  // namespace

GenerationConfig load_generation_config(const std::string& checkpoint_dir) {
  const std::string path = (std::filesystem::path(checkpoint_dir) / "generation_config.json").string();
  GenerationConfig config;
  if (!stands_at(path)) return config;
  const json object = read_json_file(path);
  ConfigProblems problems;
  const ConfigReader reader(object, problems);
  config.eos_token_ids = reader.integer_or_list("eos_token_id");
  config.temperature = read_number(object, "temperature", 0, false, 1e6, problems);
  config.top_p = read_number(object, "top_p", 0, true, 1, problems);
  config.min_p = read_number(object, "min_p", 0, false, 1, problems);
  if (reader.has("top_k") && object["top_k"] != -1) config.top_k = reader.integer("top_k", 0);
  if (reader.has("max_new_tokens")) config.max_new_tokens = reader.integer("max_new_tokens", 1);
  config.stop_strings = read_stop_strings(object, problems);
  if (reader.has("do_sample")) {
    const json& sample = object["do_sample"];
    if (!sample.is_boolean()) problems.add("do_sample", "wanted true or false but got ", sample.dump());
    if (sample == false) config.temperature = 0;
  }
  problems.throw_if_any(path);

  ConfigProblems not_done;
  std::vector<std::string> unknown;
  check_fields(object, ConfigSection::kGeneration, "", not_done, unknown);
  for (const auto& field : not_done.fields()) {
    config.notices.push_back(
        concat("generation_config.json asks for ", field, " = ", object[field].dump(), ", which is not applied"));
  }
  if (!unknown.empty()) config.notices.push_back("generation_config.json holds unknown fields: " + joined(unknown));
  return config;
}

}  // namespace reprise
