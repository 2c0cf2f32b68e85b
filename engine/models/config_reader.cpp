#include "models/config_reader.h"

#include <nlohmann/json.hpp>

namespace reprise {
namespace {

constexpr int64_t kIntegerEnd = int64_t{1} << 31;

bool is_small_integer(const nlohmann::json& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>() < static_cast<uint64_t>(kIntegerEnd);
  return value.is_number_integer() && value.get<int64_t>() > -kIntegerEnd;
}

}  // namespace

void ConfigProblems::throw_if_any(const std::string& origin) const {
  if (lines_.empty()) return;
  std::string message = concat("[", origin, "] ", lines_.size(), lines_.size() == 1 ? " problem:" : " problems:");
  for (const auto& line : lines_) message += "\n  " + line;
  throw std::invalid_argument(message);
}

const nlohmann::json* ConfigReader::find(const std::string& field) const {
  const auto found = object_.find(field);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const nlohmann::json* ConfigReader::require(const std::string& field) const {
  const auto* value = find(field);
  if (value == nullptr) problems_.add(field, "missing");
  return value;
}

bool ConfigReader::has(const std::string& field) const { return find(field) != nullptr; }

int64_t ConfigReader::integer(const std::string& field, int64_t least) const {
  const auto* value = require(field);
  if (value == nullptr) return 0;
  if (!is_small_integer(*value) || value->get<int64_t>() < least) {
    problems_.add(field, "wanted an integer of at least ", least, " but got ", value->dump());
    return 0;
  }
  return value->get<int64_t>();
}

int64_t ConfigReader::integer_or(const std::string& field, int64_t fallback, int64_t least) const {
  return has(field) ? integer(field, least) : fallback;
}

double ConfigReader::positive_number(const std::string& field) const {
  const auto* value = require(field);
  if (value == nullptr) return 0;
  if (!value->is_number() || !(value->get<double>() > 0)) {
    problems_.add(field, "wanted a number above 0 but got ", value->dump());
    return 0;
  }
  return value->get<double>();
}

double ConfigReader::number_or(const std::string& field, double fallback) const {
  return has(field) ? positive_number(field) : fallback;
}

std::vector<int64_t> ConfigReader::integers(const std::string& field) const {
  const auto* value = require(field);
  if (value == nullptr) return {};
  std::vector<int64_t> result;
  bool good = value->is_array();
  for (size_t i = 0; good && i < value->size(); ++i) {
    good = is_small_integer((*value)[i]);
    if (good) result.push_back((*value)[i].get<int64_t>());
  }
  if (good) return result;
  problems_.add(field, "wanted a list of integers but got ", value->dump());
  return {};
}

std::vector<int64_t> ConfigReader::integers_or_empty(const std::string& field) const {
  return has(field) ? integers(field) : std::vector<int64_t>{};
}

std::vector<int64_t> ConfigReader::integer_or_list(const std::string& field) const {
  const auto* value = find(field);
  if (value == nullptr || value->is_array()) return integers_or_empty(field);
  return {integer(field, 0)};
}

std::optional<std::string> ConfigReader::text(const std::string& field) const {
  const auto* value = find(field);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  problems_.add(field, "wanted a string but got ", value->dump());
  return std::nullopt;
}

void ConfigReader::only(const std::string& field, const nlohmann::json& supported) const {
  const auto* value = find(field);
  if (value != nullptr && *value != supported) {
    problems_.add(field, "wanted ", supported.dump(), " (the only one supported) but got ", value->dump());
  }
}

}  // namespace reprise
