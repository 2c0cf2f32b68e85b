#include "models/family.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/json_file.h"
#include "models/deepseek_v41.h"
#include "reprise/error.h"

namespace reprise {

namespace {

class DeepseekV41Decoder final : public Decoder {
 public:
  explicit DeepseekV41Decoder(ModelConfig config) : config_(std::move(config)), facts_(make_model_facts(config_)) {}
  const ModelFacts& facts() const override { return facts_; }
  std::unique_ptr<Model> make(const ModelOptions& options, WeightSource& weights) const override {
    return std::make_unique<DeepseekV41>(config_, options, weights);
  }

 private:
  ModelConfig config_;
  ModelFacts facts_;
};

}  // namespace

std::span<const Family> families() {
  static const std::vector<Family> all = {
      {{"deepseek_v41", "deepseek_v41_text"},
       [](const std::string& checkpoint_dir) -> std::unique_ptr<Decoder> {
         return std::make_unique<DeepseekV41Decoder>(load_model_config(checkpoint_dir));
       }},
  };
  return all;
}

std::unique_ptr<Decoder> read_decoder(const std::string& checkpoint_dir, std::span<const Family> from) {
  const nlohmann::json config = read_config_file(checkpoint_dir);
  const auto type = config.find("model_type");
  std::string known;
  for (const Family& family : from) {
    for (const std::string& name : family.model_types) {
      if (type != config.end() && *type == name) return family.read(checkpoint_dir);
      known += (known.empty() ? "" : " or ") + name;
    }
  }
  REPRISE_REQUIRE(false, "[", checkpoint_dir, "/config.json] wanted model_type ", known,
                  " (what this engine supports) but got ", type == config.end() ? "none" : type->dump());
}

}  // namespace reprise
