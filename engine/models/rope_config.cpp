#include "models/rope_config.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "models/config_fields.h"

namespace reprise {
namespace {

using nlohmann::json;

constexpr const char* kMain = "main";
constexpr const char* kCompress = "compress";

// How the frequencies of layers with a ratio above 0 are interpolated; a factor of 1 changes none.
struct Yarn {
  double factor = 1;
  double original_max_position = 0;
  double beta_fast = 32;
  double beta_slow = 1;

  bool operator==(const Yarn&) const = default;
};

// A number that may stand in several places.
class AgreedNumber {
 public:
  void state(const std::string& where, double value, ConfigProblems& problems) {
    if (value == 0 || value_ == 0) {  // 0: what was wrong with it has been said
      if (where_.empty() || value != 0) where_ = where;
      value_ = value;
    } else if (value != value_) {
      problems.add(where, "wanted the same value as ", where_, " = ", value_, " but got ", value);
    }
  }
  bool stated() const { return !where_.empty(); }
  double value() const { return value_; }

 private:
  std::string where_;
  double value_ = 0;
};

// theta = 1 turns all channels alike and has no logarithm to divide by; below it, frequencies grow without bound.
double theta_of(const ConfigReader& reader, const char* field, const std::string& where, ConfigProblems& problems) {
  const double theta = reader.positive_number(field);
  if (theta == 0 || theta > 1) return theta;
  problems.add(where, "wanted a number above 1 but got ", theta);
  return 0;
}

class RopeReader {
 public:
  RopeReader(const ModelConfig& config, ConfigProblems& problems, std::vector<std::string>& unknown)
      : config_(config), problems_(problems), unknown_(unknown) {}

  AgreedNumber main_theta;
  AgreedNumber compress_theta;

  // One of the two fields.
  Yarn read(const json& object, const std::string& field) {
    if (!object.is_object()) {
      problems_.add(field, "wanted an object but got ", object.dump());
      return {};
    }
    if (object.contains(kMain) || object.contains(kCompress)) return read_groups(object, field);
    check_fields(object, ConfigSection::kRope, field + ".", problems_, unknown_);
    const ConfigReader reader(object, problems_, field + ".");
    check_rotary_factor(reader, field);
    if (reader.has("rope_theta")) {
      const auto where = field + ".rope_theta";
      main_theta.state(where, theta_of(reader, "rope_theta", where, problems_), problems_);
    }
    return read_scaling(reader, field, type_of(reader, field));
  }

  void check_rotary_factor(const ConfigReader& reader, const std::string& where) {
    if (!reader.has("partial_rotary_factor") || config_.head_dim == 0) return;
    const double wanted = static_cast<double>(config_.qk_rope_head_dim) / static_cast<double>(config_.head_dim);
    const double got = reader.positive_number("partial_rotary_factor");
    if (got != 0 && std::abs(got - wanted) > 1e-6 * wanted) {
      problems_.add(where + (where.empty() ? "" : ".") + "partial_rotary_factor",
                    "wanted qk_rope_head_dim / head_dim = ", wanted, " but got ", got);
    }
  }

 private:
  Yarn read_groups(const json& object, const std::string& field) {
    Yarn yarn;
    for (const auto& [name, group] : object.items()) {
      if (name == kMain || name == kCompress || group.is_null()) continue;
      // The library that writes groups may leave a copy of one of their fields beside them.
      const auto same = [&](const char* other) {
        return object.contains(other) && object[other].is_object() && object[other].value(name, json()) == group;
      };
      if (!group.is_object() && (same(kMain) || same(kCompress))) continue;
      problems_.add(field + "." + name,
                    "wanted the groups main and compress, or fields and no groups, but got this beside them");
    }
    for (const char* name : {kMain, kCompress}) {
      const std::string path = field + "." + name;
      const bool needed = name == std::string_view(kMain) || !config_.kv_source_layer_ids.empty();
      if (!object.contains(name) || object[name].is_null()) {
        if (needed) problems_.add(path, "missing");
        continue;
      }
      const json& group = object[name];
      if (!group.is_object()) {
        problems_.add(path, "wanted an object but got ", group.dump());
        continue;
      }
      check_fields(group, ConfigSection::kRope, path + ".", problems_, unknown_);
      const ConfigReader reader(group, problems_, path + ".");
      check_rotary_factor(reader, path);
      AgreedNumber& theta = name == std::string_view(kMain) ? main_theta : compress_theta;
      const auto where = path + ".rope_theta";
      if (reader.has("rope_theta")) theta.state(where, theta_of(reader, "rope_theta", where, problems_), problems_);
      const std::string type = type_of(reader, path);
      if (name == std::string_view(kCompress)) {
        yarn = read_scaling(reader, path, type);
      } else if (type != "default") {
        problems_.add(path + ".rope_type", "wanted default (layers without compressed KV are not scaled) but got ",
                      type);
      }
    }
    return yarn;
  }

  std::string type_of(const ConfigReader& reader, const std::string& path) {
    const auto type = reader.text("rope_type");
    const auto older = reader.text("type");
    if (type && older && *type != *older) {
      problems_.add(path + ".type", "wanted the same value as rope_type = ", *type, " but got ", *older);
    }
    if (!type && !older && reader.has("factor")) problems_.add(path + ".rope_type", "missing beside a factor");
    return type ? *type : older.value_or("default");
  }

  Yarn read_scaling(const ConfigReader& reader, const std::string& path, const std::string& type) {
    Yarn yarn{.original_max_position = static_cast<double>(config_.max_position_embeddings)};
    if (type == "default") return yarn;
    if (type != "yarn") {
      problems_.add(path + ".rope_type", "wanted yarn or default but got ", type);
      return yarn;
    }
    yarn.factor = reader.positive_number("factor");
    yarn.original_max_position = reader.positive_number("original_max_position_embeddings");
    yarn.beta_fast = reader.number_or("beta_fast", 32);
    yarn.beta_slow = reader.number_or("beta_slow", 1);
    if (yarn.beta_fast > 0 && yarn.beta_slow > 0 && yarn.beta_fast <= yarn.beta_slow) {
      problems_.add(path + ".beta_fast", "wanted more than beta_slow = ", yarn.beta_slow, " but got ", yarn.beta_fast);
    }
    if (yarn.factor > 0 && yarn.factor < 1) {
      problems_.add(path + ".factor", "wanted at least 1 but got ", yarn.factor);
    }
    return yarn;
  }

  const ModelConfig& config_;
  ConfigProblems& problems_;
  std::vector<std::string>& unknown_;
};

}  // namespace

void read_rope(const json& text_object, ModelConfig& config, ConfigProblems& problems,
               std::vector<std::string>& unknown) {
  const ConfigReader text(text_object, problems);
  RopeReader rope(config, problems, unknown);
  std::optional<Yarn> yarn;
  for (const char* field : {"rope_parameters", "rope_scaling"}) {
    if (!text.has(field)) continue;
    const Yarn read = rope.read(text_object.at(field), field);
    if (yarn && *yarn != read) {
      problems.add(field, "wanted the same scaling as in rope_parameters but got ", text_object.at(field).dump());
    }
    if (!yarn) yarn = read;
  }
  rope.check_rotary_factor(text, "");
  for (const auto& [field, theta] :
       {std::pair("rope_theta", &rope.main_theta), std::pair("compress_rope_theta", &rope.compress_theta)}) {
    const bool needed = theta == &rope.main_theta || !config.kv_source_layer_ids.empty();
    if (text.has(field)) {
      theta->state(field, theta_of(text, field, field, problems), problems);
    } else if (needed && !theta->stated()) {
      problems.add(field, "missing");
    }
  }
  config.rope_theta = rope.main_theta.value();
  config.compress_rope_theta = rope.compress_theta.value();
  const Yarn scaling =
      yarn.value_or(Yarn{.original_max_position = static_cast<double>(config.max_position_embeddings)});
  config.yarn_factor = scaling.factor;
  config.yarn_original_max_position = scaling.original_max_position;
  config.yarn_beta_fast = scaling.beta_fast;
  config.yarn_beta_slow = scaling.beta_slow;
}

}  // namespace reprise
