#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/mapped_file.h"

namespace reprise {

// Element types of the safetensors format, by its names.
enum class StoredDtype {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64
};

std::string_view dtype_name(StoredDtype dtype);  // "F8_E4M3"
int64_t dtype_bytes(StoredDtype dtype);          // per element

// A tensor as it lies in a file: row-major, little-endian, at any alignment.
struct StoredTensor {
  StoredDtype dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;  // into the mapped file
};

// One mapped safetensors file, its header checked: every tensor's bytes lie inside the file, fit its shape and dtype,
// and belong to no other tensor.
class SafetensorsFile {
 public:
  // Throws std::invalid_argument naming the file, and the tensor where one is to blame.
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  void release(std::span<const std::byte> part) const { file_.release(part); }

 private:
  MappedFile file_;
  std::map<std::string, StoredTensor> tensors_;
};

}  // namespace reprise
