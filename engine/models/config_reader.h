#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "reprise/error.h"

namespace reprise {

// Everything that is wrong with a config, one line per field.
class ConfigProblems {
 public:
  template <typename... Args>
  void add(const std::string& field, const Args&... what) {
    fields_.insert(field);
    lines_.push_back(concat(field, ": ", what...));
  }
  bool has(const std::string& field) const { return fields_.contains(field); }
  const std::set<std::string>& fields() const { return fields_; }
  // Throws std::invalid_argument listing all of them, if there are any.
  void throw_if_any(const std::string& origin) const;

 private:
  std::set<std::string> fields_;
  std::vector<std::string> lines_;
};

// "a, b, c"
std::string joined(const std::vector<std::string>& names);

// Typed access to the fields of a JSON object. What is missing or of the wrong type is noted, and zero or empty comes
// back.
class ConfigReader {
 public:
  static constexpr int64_t kLargestInteger = (int64_t{1} << 31) - 1;

  // `path` stands before the names of fields in messages ("rope_parameters.").
  ConfigReader(const nlohmann::json& object, ConfigProblems& problems, std::string path = "")
      : object_(object), problems_(problems), path_(std::move(path)) {}

  bool has(const std::string& field) const;  // present and not null
  // An integer in [least, most], at most below 2^31: every size fits, and products of a few of them fit int64_t.
  int64_t integer(const std::string& field, int64_t least, int64_t most = kLargestInteger) const;
  int64_t integer_or(const std::string& field, int64_t fallback, int64_t least) const;
  // A number above 0 that float32, in which it is used, holds as more than 0 and less than infinity.
  double positive_number(const std::string& field) const;
  double number_or(const std::string& field, double fallback) const;
  std::vector<int64_t> integers(const std::string& field) const;
  std::vector<int64_t> integers_or_empty(const std::string& field) const;
  // One integer or a list of them; empty when absent.
  std::vector<int64_t> integer_or_list(const std::string& field) const;
  std::optional<std::string> text(const std::string& field) const;

 private:
  const nlohmann::json* find(const std::string& field) const;
  const nlohmann::json* require(const std::string& field) const;

  const nlohmann::json& object_;
  ConfigProblems& problems_;
  std::string path_;
};

}  // namespace reprise
