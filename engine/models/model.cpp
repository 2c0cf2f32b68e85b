#include "models/model.h"

#include "models/deepseek_v41.h"
#include "reprise/error.h"

namespace reprise {

std::unique_ptr<Model> make_model(const ModelConfig& config, const ModelOptions& options, WeightSource& weights) {
  REPRISE_REQUIRE(config.model_type.starts_with("deepseek_v41"),
                  "[make_model] wanted model_type deepseek_v41 but got '", config.model_type, "'");
  auto model = std::make_unique<DeepseekV41>(config, options, weights);
  weights.finish();
  return model;
}

}  // namespace reprise
