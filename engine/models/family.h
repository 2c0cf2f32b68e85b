#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/weight_source.h"
#include "models/model.h"
#include "reprise/model_facts.h"

namespace reprise {

// A checkpoint's decoder before its weights are read: what its config says.
class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual const ModelFacts& facts() const = 0;
  // The model with its weights taken from `weights`; finish() is the caller's.
  virtual std::unique_ptr<Model> make(const ModelOptions& options, WeightSource& weights) const = 0;
};

// A family of decoders. Everything outside models/ and layers/ knows a decoder by its facts alone.
struct Family {
  std::vector<std::string> model_types;  // as config.json names them
  // Reads and checks CHECKPOINT/config.json. Throws std::invalid_argument naming every field that is wrong.
  std::unique_ptr<Decoder> (*read)(const std::string& checkpoint_dir);
};

// The families of this engine: a new one is one entry here.
std::span<const Family> families();

// The decoder of a checkpoint. Throws std::invalid_argument where no family reads its model_type.
std::unique_ptr<Decoder> read_decoder(const std::string& checkpoint_dir, std::span<const Family> from = families());

}  // namespace reprise
