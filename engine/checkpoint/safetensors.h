#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/regular_file.h"

namespace reprise {

// Element types of the safetensors format, by its names; kUnknown is any other, of which no more than its place is
// known.
enum class StoredDtype {
  kUnknown,
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

int64_t dtype_bytes(StoredDtype dtype);  // per element

// A tensor as it lies in a file: row-major, little-endian, at any alignment.
struct StoredTensor {
  StoredDtype dtype;
  std::string dtype_name;  // "F8_E4M3", as the file says
  std::vector<int64_t> shape;
  const RegularFile* file;
  uint64_t offset;  // in the file
  uint64_t bytes;

  // Fills `to` with the bytes from `begin` on, counted from the tensor's first. Throws as RegularFile::read does.
  void read(uint64_t begin, std::span<std::byte> to) const { file->read(offset + begin, to); }
  std::vector<std::byte> read() const;  // all of them
};

// One safetensors file, its header checked: every tensor's bytes lie inside the file, fit its shape and dtype (unless
// the dtype is unknown), and belong to no other tensor.
class SafetensorsFile {
 public:
  // Throws std::invalid_argument naming the file, and the tensor where one is to blame.
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  // Throws std::runtime_error when the file was written to since it was opened.
  void check_unchanged() const { file_.check_unchanged(); }

 private:
  RegularFile file_;
  std::map<std::string, StoredTensor> tensors_;
};

}  // namespace reprise
