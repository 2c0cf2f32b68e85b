#include "checkpoint/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/json_file.h"
#include "reprise/error.h"

namespace reprise {
namespace {

using nlohmann::json;

struct DtypeFacts {
  StoredDtype dtype;
  std::string_view name;
  int64_t bytes;
};

constexpr DtypeFacts kDtypes[] = {
    {StoredDtype::kBool, "BOOL", 1},      {StoredDtype::kU8, "U8", 1},          {StoredDtype::kI8, "I8", 1},
    {StoredDtype::kF8E5M2, "F8_E5M2", 1}, {StoredDtype::kF8E4M3, "F8_E4M3", 1}, {StoredDtype::kF8E8M0, "F8_E8M0", 1},
    {StoredDtype::kI16, "I16", 2},        {StoredDtype::kU16, "U16", 2},        {StoredDtype::kF16, "F16", 2},
    {StoredDtype::kBF16, "BF16", 2},      {StoredDtype::kI32, "I32", 4},        {StoredDtype::kU32, "U32", 4},
    {StoredDtype::kF32, "F32", 4},        {StoredDtype::kF64, "F64", 8},        {StoredDtype::kI64, "I64", 8},
    {StoredDtype::kU64, "U64", 8},
};

constexpr uint64_t kStartBytes = 64;              // of the file, enough to tell what it is
constexpr uint64_t kLengthBytes = 8;              // the header's length, little-endian, opens the file
constexpr uint64_t kMaxHeaderBytes = 100000000;   // the format's own limit
constexpr uint64_t kMaxSize = uint64_t{1} << 40;  // of one dimension, also beside a dimension of 0

const DtypeFacts& facts_of(StoredDtype dtype) {
  return *std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const auto& facts) { return facts.dtype == dtype; });
}

std::string read_header(const RegularFile& file) {
  std::string start(std::min(file.size(), kStartBytes), '\0');
  file.read(0, std::as_writable_bytes(std::span(start)));
  refuse_lfs_pointer(start, file.path());
  REPRISE_REQUIRE(file.size() >= kLengthBytes, "[", file.path(), "] wanted a safetensors file but got ", file.size(),
                  " bytes, too few for a header; is the download complete?");
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= uint64_t{static_cast<unsigned char>(start[i])} << (8 * i);
  REPRISE_REQUIRE(length <= kMaxHeaderBytes, "[", file.path(), "] wanted a header of at most ", kMaxHeaderBytes,
                  " bytes but the file says ", length, "; is it a safetensors file?");
  REPRISE_REQUIRE(length <= file.size() - kLengthBytes, "[", file.path(), "] wanted a header of ", length,
                  " bytes but the file ends after ", file.size() - kLengthBytes, "; is the download complete?");
  std::string header(length, '\0');
  file.read(kLengthBytes, std::as_writable_bytes(std::span(header)));
  return header;
}

std::vector<uint64_t> read_integers(const json& entry, const char* field, const std::string& where) {
  const auto found = entry.find(field);
  REPRISE_REQUIRE(found != entry.end(), where, " wanted a field ", field, " but there is none");
  const bool good = found->is_array() && std::all_of(found->begin(), found->end(),
                                                     [](const json& value) { return value.is_number_unsigned(); });
  REPRISE_REQUIRE(good, where, " wanted ", field, " to be a list of integers of at least 0 but got ", found->dump());
  return found->get<std::vector<uint64_t>>();
}

std::string read_dtype_name(const json& entry, const std::string& where) {
  const auto found = entry.find("dtype");
  REPRISE_REQUIRE(found != entry.end() && found->is_string(), where, " wanted a dtype by name but got ",
                  found == entry.end() ? "none" : found->dump());
  return found->get<std::string>();
}

// `data_begin`: where the tensors' bytes begin in the file; they go on to its end.
StoredTensor read_entry(const json& entry, const RegularFile& file, uint64_t data_begin, const std::string& where) {
  REPRISE_REQUIRE(entry.is_object(), where, " wanted an object but got ", entry.dump());
  const uint64_t data_bytes = file.size() - data_begin;
  StoredTensor tensor{.dtype = StoredDtype::kUnknown,
                      .dtype_name = read_dtype_name(entry, where),
                      .shape = {},
                      .file = &file,
                      .offset = 0,
                      .bytes = 0};
  for (const auto& facts : kDtypes) {
    if (facts.name == tensor.dtype_name) tensor.dtype = facts.dtype;
  }
  const auto offsets = read_integers(entry, "data_offsets", where);
  REPRISE_REQUIRE(offsets.size() == 2 && offsets[0] <= offsets[1], where, " wanted data_offsets [begin, end] but got ",
                  entry["data_offsets"].dump());
  REPRISE_REQUIRE(offsets[1] <= data_bytes, where, " wanted data_offsets within the file's ", data_bytes,
                  " bytes of data but got ", entry["data_offsets"].dump(), "; is the download complete?");
  tensor.offset = data_begin + offsets[0];
  tensor.bytes = offsets[1] - offsets[0];
  const bool known = tensor.dtype != StoredDtype::kUnknown;
  uint64_t bytes = known ? static_cast<uint64_t>(dtype_bytes(tensor.dtype)) : 0;
  for (const uint64_t size : read_integers(entry, "shape", where)) {
    // The product is held to the file's size at every step, so it cannot overflow.
    REPRISE_REQUIRE(size <= kMaxSize && (size == 0 || bytes <= data_bytes / size), where,
                    " wanted a shape that fits the file's ", data_bytes, " bytes of data but got ",
                    entry["shape"].dump(), " of ", tensor.dtype_name);
    bytes *= size;
    tensor.shape.push_back(static_cast<int64_t>(size));
  }
  REPRISE_REQUIRE(!known || tensor.bytes == bytes, where, " wanted ", bytes, " bytes for shape ", entry["shape"].dump(),
                  " of ", tensor.dtype_name, " but data_offsets span ", tensor.bytes);
  return tensor;
}

// The format allows neither overlaps nor holes: one of them means that an offset lies.
void check_layout(const std::map<std::string, StoredTensor>& tensors, const RegularFile& file, uint64_t data_begin) {
  std::vector<std::pair<const std::string*, const StoredTensor*>> parts;
  for (const auto& [name, tensor] : tensors) parts.emplace_back(&name, &tensor);
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->offset, a.second->bytes) < std::pair(b.second->offset, b.second->bytes);
  });
  uint64_t end = data_begin;
  for (const auto& [name, tensor] : parts) {
    REPRISE_REQUIRE(tensor->offset == end, "[", file.path(), "] tensor ", *name,
                    " wanted to begin where the one before it ends, at ", end - data_begin,
                    ", but its data_offsets begin at ", tensor->offset - data_begin);
    end += tensor->bytes;
  }
  REPRISE_REQUIRE(end == file.size(), "[", file.path(), "] wanted ", end - data_begin,
                  " bytes of data, as the header says, but got ", file.size() - data_begin);
}

}  // namespace

int64_t dtype_bytes(StoredDtype dtype) { return facts_of(dtype).bytes; }

std::vector<std::byte> StoredTensor::read() const {
  std::vector<std::byte> all(bytes);
  read(0, all);
  return all;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  const std::string header = read_header(file_);
  const uint64_t data_begin = kLengthBytes + header.size();
  const json entries = parse_json_object(header, path + ": header");
  for (const auto& [name, entry] : entries.items()) {
    if (name == "__metadata__") continue;
    tensors_.emplace(name, read_entry(entry, file_, data_begin, concat("[", path, "] tensor ", name)));
  }
  check_layout(tensors_, file_, data_begin);
}

}  // namespace reprise
