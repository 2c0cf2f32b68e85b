#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <string>

#include "../backends/kernel_testing.h"
#include "checkpoint/weight_source.h"

namespace reprise {

// Makes up a weight for every name that a layer takes and remembers it for the test's own arithmetic.
class RandomWeights : public WeightSource {
 public:
  explicit RandomWeights(unsigned seed) : random_(seed) {}

  bool has(const std::string&) const override { return true; }
  void take_into(const std::string& name, const at::Tensor& destination) override {
    destination.copy_(take(name, destination.sizes(), destination.scalar_type()));
  }
  // Matrices keep their input's magnitude; vectors (norms, sinks, biases) spread around one.
  at::Tensor take(const std::string& name, at::IntArrayRef shape, at::ScalarType dtype) override {
    if (taken_.count(name) != 0) throw std::logic_error(name + " is taken twice");
    at::Tensor weight =
        normal(shape, random_, dtype, shape.size() < 2 ? 0.3f : 1 / std::sqrt(static_cast<float>(shape.back())));
    if (shape.size() < 2) weight.add_(1);
    taken_[name] = weight.clone();
    return weight;
  }
  void skip(const std::string& name) override { skipped_.insert(name); }
  void finish() override {}

  // In double.
  at::Tensor operator[](const std::string& name) const { return taken_.at(name).to(at::kDouble); }
  at::ScalarType dtype_of(const std::string& name) const { return taken_.at(name).scalar_type(); }
  std::set<std::string> names() const {
    std::set<std::string> result;
    for (const auto& [name, weight] : taken_) result.insert(name);
    return result;
  }
  const std::set<std::string>& skipped() const { return skipped_; }

 private:
  std::mt19937 random_;
  std::map<std::string, at::Tensor> taken_;
  std::set<std::string> skipped_;
};

}  // namespace reprise
