#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
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
  // Throws std::invalid_argument listing all of them, if there are any.
  void throw_if_any(const std::string& origin) const;

 private:
  std::set<std::string> fields_;
  std::vector<std::string> lines_;
};

// Typed access to the fields of a JSON object. What is missing or of the wrong type is noted, and zero or empty comes
// back.
class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& object, ConfigProblems& problems) : object_(object), problems_(problems) {}

  bool has(const std::string& field) const;  // present and not null
  // An integer in [least, 2^31): every size here fits, and products of a few of them fit int64_t.
  int64_t integer(const std::string& field, int64_t least) const;
  int64_t integer_or(const std::string& field, int64_t fallback, int64_t least) const;
  double positive_number(const std::string& field) const;
  double number_or(const std::string& field, double fallback) const;
  std::vector<int64_t> integers(const std::string& field) const;
  std::vector<int64_t> integers_or_empty(const std::string& field) const;
  // One integer or a list of them; empty when absent.
  std::vector<int64_t> integer_or_list(const std::string& field) const;
  std::optional<std::string> text(const std::string& field) const;
  // Notes a problem when the field is present with another value: the engine knows only this one.
  void only(const std::string& field, const nlohmann::json& supported) const;

 private:
  const nlohmann::json* find(const std::string& field) const;
  const nlohmann::json* require(const std::string& field) const;

  const nlohmann::json& object_;
  ConfigProblems& problems_;
};

}  // namespace reprise
