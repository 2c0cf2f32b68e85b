#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "checkpoint/dequantize.h"
#include "checkpoint/json_file.h"
#include "memory/tensor_source.h"
#include "reprise/error.h"

namespace reprise {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

// Parts of a release that a text engine has no use for.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kOtherModalities = {
    {{"mtp.", "drafter"}, {"vision.", "vision"}, {"aligner.", "vision"}, {"image_", "vision"}}};

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// What misfits may allocate in all before loading ends at once: as much as the files' tensors could need, or little.
constexpr double kMisfitElements = 1 << 26;
constexpr double kElementsPerByte = 2;  // of packed FP4

// "layers.0.attn.wq_a.weight" -> "layers.0.attn.wq_a.scale"; empty for a tensor that can have no scale.
std::string scale_name(const std::string& name) {
  constexpr std::string_view kSuffix = ".weight";
  return name.ends_with(kSuffix) ? name.substr(0, name.size() - kSuffix.size()) + ".scale" : "";
}

}  // namespace

Checkpoint::Checkpoint(const std::string& checkpoint_dir, Progress on_progress)
    : checkpoint_dir_(checkpoint_dir), on_progress_(std::move(on_progress)) {
  const auto single = (fs::path(checkpoint_dir) / kSingleFile).string();
  const auto index = (fs::path(checkpoint_dir) / kIndexFile).string();
  if (stands_at(single)) {
    add_file(single);
  } else {
    REPRISE_REQUIRE(stands_at(index), "[load] wanted ", kSingleFile, " or ", kIndexFile, " in ", checkpoint_dir,
                    " but there is neither");
    load_index(index);
  }
  pass_over_other_modalities();
  for (const auto& [name, tensor] : tensors_) total_bytes_ += static_cast<int64_t>(tensor->bytes);
}

void Checkpoint::add_file(const std::string& path) {
  files_.push_back(std::make_unique<SafetensorsFile>(path));
  const auto& file = *files_.back();
  for (const auto& [name, tensor] : file.tensors()) {
    const auto [before, added] = tensors_.try_emplace(name, &tensor);
    REPRISE_REQUIRE(added, "[", path, "] tensor ", name, " also stands in ", before->second->file->path());
  }
}

void Checkpoint::load_index(const std::string& index_path) {
  const nlohmann::json index = read_json_file(index_path);
  const auto map = index.find("weight_map");
  REPRISE_REQUIRE(map != index.end() && map->is_object(), "[", index_path,
                  "] wanted an object \"weight_map\" but there is none");
  std::set<std::string> shards;
  for (const auto& [name, shard] : map->items()) {
    REPRISE_REQUIRE(shard.is_string(), "[", index_path, "] tensor ", name, " wanted a file name but got ",
                    shard.dump());
    const fs::path file = shard.get<std::string>();
    REPRISE_REQUIRE(!file.empty() && file == file.filename() && file != "." && file != "..", "[", index_path,
                    "] tensor ", name, " wanted the name of a file in the same folder but got ", shard.dump());
    shards.insert(file.string());
  }
  std::vector<std::string> absent;
  for (const auto& shard : shards) {
    if (!stands_at((fs::path(checkpoint_dir_) / shard).string())) absent.push_back(shard);
  }
  REPRISE_REQUIRE(absent.empty(), "[", index_path, "] names files that are not there: ", join(absent),
                  "; is the download complete?");
  for (const auto& shard : shards) add_file((fs::path(checkpoint_dir_) / shard).string());

  std::vector<std::string> lies;
  for (const auto& [name, shard] : map->items()) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      lies.push_back(concat(name, " is in none of the files (named: ", shard.get<std::string>(), ")"));
    } else if (const auto actual = fs::path(found->second->file->path()).filename();
               actual != shard.get<std::string>()) {
      lies.push_back(concat(name, " is in ", actual.string(), ", not in ", shard.get<std::string>()));
    }
  }
  for (const auto& [name, tensor] : tensors_) {
    if (!map->contains(name)) lies.push_back(concat(name, " is in ", tensor->file->path(), " but not in the index"));
  }
  REPRISE_REQUIRE(lies.empty(), "[", index_path, "] does not agree with the files: ", join(lies));
}

void Checkpoint::pass_over_other_modalities() {
  std::map<std::string_view, int64_t> passed;
  std::erase_if(tensors_, [&](const auto& entry) {
    for (const auto& [prefix, part] : kOtherModalities) {
      if (!entry.first.starts_with(prefix)) continue;
      ++passed[part];
      return true;
    }
    return false;
  });
  std::vector<std::string> counts;
  for (const auto& [part, count] : passed) counts.push_back(concat(count, " ", part, " tensors"));
  if (!counts.empty()) notice_ = "passed over " + join(counts);
}

bool Checkpoint::has(const std::string& name) const { return tensors_.contains(name); }

void Checkpoint::mark_used(const std::string& name) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end() || !used_.insert(name).second) return;
  done_bytes_ += static_cast<int64_t>(found->second->bytes);
}

const StoredTensor* Checkpoint::scale_of(const std::string& name, const StoredTensor& weight) const {
  if (!needs_scale(weight.dtype)) return nullptr;
  const auto scale = tensors_.find(scale_name(name));
  return scale == tensors_.end() ? nullptr : scale->second;
}

bool Checkpoint::fits(const std::string& name, at::IntArrayRef shape) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    missing_.push_back(name);
    return false;
  }
  const StoredTensor& weight = *found->second;
  const StoredTensor* scale = scale_of(name, weight);
  mark_used(name);
  if (scale != nullptr) mark_used(scale_name(name));
  try {
    const WeightFormat format = weight_format(weight, scale, name);
    const auto stored = unpacked_shape(weight);
    REPRISE_REQUIRE(at::IntArrayRef(stored) == shape, name, ": wanted shape ", shape, " but got ",
                    at::IntArrayRef(stored), format == WeightFormat::kFp4Rows ? " (unpacked)" : "");
    return true;
  } catch (const std::invalid_argument& error) {
    misfits_.push_back(concat(error.what(), " in ", weight.file->path()));
    return false;
  }
}

void Checkpoint::read(const std::string& name, const at::Tensor& destination) {
  const StoredTensor& weight = *tensors_.at(name);
  const StoredTensor* scale = scale_of(name, weight);
  try {
    dequantize(weight, scale, weight_format(weight, scale, name), destination, name);
  } catch (const std::invalid_argument& error) {
    misfits_.push_back(concat(error.what(), " in ", weight.file->path()));
  }
}

void Checkpoint::take_into(const std::string& name, const at::Tensor& destination) {
  REPRISE_REQUIRE(destination.defined() && destination.is_contiguous() && destination.device().is_cpu() &&
                      (destination.scalar_type() == at::kFloat || destination.scalar_type() == at::kBFloat16),
                  "[take_into] ", name, ": wanted a contiguous float32 or bfloat16 CPU tensor to fill but got another");
  if (fits(name, destination.sizes())) read(name, destination);
  if (on_progress_) on_progress_(done_bytes_, total_bytes_);
}

at::Tensor Checkpoint::take(const std::string& name, at::IntArrayRef shape, at::ScalarType dtype) {
  const bool good = fits(name, shape);
  if (!good) {
    // In double: the sizes of a config that lies may multiply to more than int64_t holds, or have wrapped around.
    double elements = 1;
    for (const int64_t size : shape) elements *= size >= 0 ? static_cast<double>(size) : HUGE_VAL;
    misfit_elements_ += elements;
    const double most = std::max(kMisfitElements, kElementsPerByte * static_cast<double>(total_bytes_));
    if (misfit_elements_ > most)
      throw std::invalid_argument(complaint() + "\n  (the tensors after these were not looked at)");
  }
  at::Tensor result = empty_tensor(shape, dtype);
  if (good) read(name, result);
  if (on_progress_) on_progress_(done_bytes_, total_bytes_);
  return result;
}

void Checkpoint::skip(const std::string& name) {
  mark_used(name);
  if (const auto scale = scale_name(name); !scale.empty()) mark_used(scale);
}

std::string Checkpoint::complaint() const {
  std::string message =
      concat("[load] ", checkpoint_dir_, " does not hold the weights that its config.json describes:");
  if (!missing_.empty()) message += concat("\n  ", missing_.size(), " missing: ", join(missing_));
  for (const auto& misfit : misfits_) message += "\n  " + misfit;
  return message;
}

void Checkpoint::finish() {
  std::vector<std::string> unknown;
  for (const auto& [name, tensor] : tensors_) {
    if (!used_.contains(name)) unknown.push_back(name);
  }
  for (const auto& file : files_) file->check_unchanged();
  if (missing_.empty() && misfits_.empty() && unknown.empty()) {
    if (on_progress_) on_progress_(total_bytes_, total_bytes_);
    return;
  }
  std::string message = complaint();
  if (!unknown.empty()) message += concat("\n  ", unknown.size(), " unknown: ", join(unknown));
  throw std::invalid_argument(message);
}

}  // namespace reprise
