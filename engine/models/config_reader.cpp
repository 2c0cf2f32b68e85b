#include "models/config_reader.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

namespace reprise {
namespace {

bool is_integer_within(const nlohmann::json& value, int64_t least, int64_t most) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(most)) return false;
  return value.get<int64_t>() >= least && value.get<int64_t>() <= most;
}

}  // namespace

void ConfigProblems::throw_if_any(const std::string& origin) const {
  if (lines_.empty()) return;
  std::string message = concat("[", origin, "] ", lines_.size(), lines_.size() == 1 ? " problem:" : " problems:");
  for (const auto& line : lines_) message += "\n  " + line;
  throw std::invalid_argument(message);
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + printable(name);
  return text;
}

const nlohmann::json* ConfigReader::find(const std::string& field) const {
  const auto found = object_.find(field);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const nlohmann::json* ConfigReader::require(const std::string& field) const {
  const auto* value = find(field);
  if (value == nullptr) problems_.add(path_ + field, "missing");
  return value;
}

bool ConfigReader::has(const std::string& field) const { return find(field) != nullptr; }

int64_t ConfigReader::integer(const std::string& field, int64_t least, int64_t most) const {
  const auto* value = require(field);
  if (value == nullptr) return 0;
  if (is_integer_within(*value, least, most)) return value->get<int64_t>();
  // The larger end is of interest only to a number beyond it.
  const bool beyond = value->is_number() && value->get<double>() > static_cast<double>(most);
  problems_.add(path_ + field, "wanted an integer of ", beyond ? "at most " : "at least ", beyond ? most : least,
                " but got ", value->dump());
  return 0;
}

int64_t ConfigReader::integer_or(const std::string& field, int64_t fallback, int64_t least) const {
  return has(field) ? integer(field, least) : fallback;
}

double ConfigReader::positive_number(const std::string& field) const {
  const auto* value = require(field);
  if (value == nullptr) return 0;
  if (!value->is_number() || !(value->get<double>() > 0)) {
    problems_.add(path_ + field, "wanted a number above 0 but got ", value->dump());
    return 0;
  }
  constexpr double kLeast = std::numeric_limits<float>::min();
  constexpr double kMost = std::numeric_limits<float>::max();
  const double number = value->get<double>();
  if (number >= kLeast && number <= kMost) return number;
  problems_.add(path_ + field, "wanted a number that float32 holds, from ", kLeast, " to ", kMost, ", but got ",
                value->dump());
  return 0;
}

double ConfigReader::number_or(const std::string& field, double fallback) const {
  return has(field) ? positive_number(field) : fallback;
}

std::vector<int64_t> ConfigReader::integers(const std::string& field) const {
  const auto* value = require(field);
  if (value == nullptr) return {};
  const auto is_integer = [](const nlohmann::json& item) { return item.is_number_integer(); };
  if (!value->is_array() || !std::all_of(value->begin(), value->end(), is_integer)) {
    problems_.add(path_ + field, "wanted a list of integers but got ", value->dump());
    return {};
  }
  std::vector<int64_t> result;
  for (const auto& item : *value) {
    if (!is_integer_within(item, -kLargestInteger, kLargestInteger)) {
      problems_.add(path_ + field, "wanted integers from ", -kLargestInteger, " to ", kLargestInteger, " but got ",
                    item.dump());
      return {};
    }
    result.push_back(item.get<int64_t>());
  }
  return result;
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
  problems_.add(path_ + field, "wanted a string but got ", value->dump());
  return std::nullopt;
}

}  // namespace reprise
