#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "checkpoint/weight_source.h"

namespace reprise {

// The weights of a Hugging Face checkpoint folder: model.safetensors, or the shards that model.safetensors.index.json
// names. Tensors are dequantized chunk by chunk from the file into their destination, so loading needs little memory
// beyond the weights themselves.
class Checkpoint final : public WeightSource {
 public:
  using Progress = std::function<void(int64_t done, int64_t total)>;  // bytes of the weights read so far

  // Opens the files and checks their headers. Throws std::invalid_argument naming the file and the tensor that is
  // wrong.
  explicit Checkpoint(const std::string& checkpoint_dir, Progress on_progress = {});

  bool has(const std::string& name) const override;
  void take_into(const std::string& name, const at::Tensor& destination) override;
  at::Tensor take(const std::string& name, at::IntArrayRef shape, at::ScalarType dtype) override;
  void skip(const std::string& name) override;
  void finish() override;

  // What was passed over without an error (drafter and vision tensors), for the front end to show; empty when nothing
  // was.
  const std::string& notice() const { return notice_; }
  // Bytes of the weights as stored, without the tensors that are passed over.
  int64_t total_bytes() const { return total_bytes_; }

 private:
  void add_file(const std::string& path);
  void load_index(const std::string& index_path);
  void pass_over_other_modalities();
  void mark_used(const std::string& name);
  // The tensor beside a quantized weight; null when there is none or it needs none.
  const StoredTensor* scale_of(const std::string& name, const StoredTensor& weight) const;
  // Whether a tensor is there in this shape, and marks it as used; what is wrong is noted.
  bool fits(const std::string& name, at::IntArrayRef shape);
  // Dequantizes a tensor that fits.
  void read(const std::string& name, const at::Tensor& destination);
  // What is missing or does not fit so far.
  std::string complaint() const;

  std::string checkpoint_dir_;
  Progress on_progress_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const StoredTensor*> tensors_;
  std::set<std::string> used_;
  std::vector<std::string> missing_;
  std::vector<std::string> misfits_;  // "name: wanted ... but got ..."
  double misfit_elements_ = 0;        // that take() was asked for and found no values for
  std::string notice_;
  int64_t total_bytes_ = 0;
  int64_t done_bytes_ = 0;
};

}  // namespace reprise
