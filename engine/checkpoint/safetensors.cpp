#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
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

constexpr uint64_t kLengthBytes = 8;              // the header's length, little-endian, opens the file
constexpr uint64_t kMaxHeaderBytes = 100000000;   // the format's own limit
constexpr uint64_t kMaxSize = uint64_t{1} << 40;  // of one dimension, also beside a dimension of 0

const DtypeFacts& facts_of(StoredDtype dtype) {
  return *std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const auto& facts) { return facts.dtype == dtype; });
}

std::string_view header_text(const MappedFile& file) {
  const auto bytes = file.bytes();
  REPRISE_REQUIRE(bytes.size() >= kLengthBytes, "[", file.path(), "] wanted a safetensors file but got ", bytes.size(),
                  " bytes, too few for a header; is the download complete?");
  uint64_t length = 0;
  for (uint64_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  REPRISE_REQUIRE(length <= kMaxHeaderBytes, "[", file.path(), "] wanted a header of at most ", kMaxHeaderBytes,
                  " bytes but the file says ", length, "; is it a safetensors file?");
  REPRISE_REQUIRE(length <= bytes.size() - kLengthBytes, "[", file.path(), "] wanted a header of ", length,
                  " bytes but the file ends after ", bytes.size() - kLengthBytes, "; is the download complete?");
  return {reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length};
}

std::vector<uint64_t> read_integers(const json& entry, const char* field, const std::string& where) {
  const auto found = entry.find(field);
  REPRISE_REQUIRE(found != entry.end(), where, " wanted a field ", field, " but there is none");
  const bool good = found->is_array() && std::all_of(found->begin(), found->end(),
                                                     [](const json& value) { return value.is_number_unsigned(); });
  REPRISE_REQUIRE(good, where, " wanted ", field, " to be a list of integers of at least 0 but got ", found->dump());
  return found->get<std::vector<uint64_t>>();
}

StoredDtype read_dtype_name(const json& entry, const std::string& where) {
  const auto found = entry.find("dtype");
  REPRISE_REQUIRE(found != entry.end() && found->is_string(), where, " wanted a dtype by name but got ",
                  found == entry.end() ? "none" : found->dump());
  const auto& name = found->get_ref<const std::string&>();
  for (const auto& facts : kDtypes) {
    if (facts.name == name) return facts.dtype;
  }
  std::string known;
  for (const auto& facts : kDtypes) known.append(known.empty() ? "" : ", ").append(facts.name);
  throw std::invalid_argument(concat(where, " wanted a dtype among ", known, " but got ", name));
}

StoredTensor read_entry(const json& entry, std::span<const std::byte> data, const std::string& where) {
  REPRISE_REQUIRE(entry.is_object(), where, " wanted an object but got ", entry.dump());
  StoredTensor tensor{read_dtype_name(entry, where), {}, {}};
  const auto offsets = read_integers(entry, "data_offsets", where);
  REPRISE_REQUIRE(offsets.size() == 2 && offsets[0] <= offsets[1], where, " wanted data_offsets [begin, end] but got ",
                  entry["data_offsets"].dump());
  REPRISE_REQUIRE(offsets[1] <= data.size(), where, " wanted data_offsets within the file's ", data.size(),
                  " bytes of data but got ", entry["data_offsets"].dump(), "; is the download complete?");
  uint64_t bytes = static_cast<uint64_t>(dtype_bytes(tensor.dtype));
  for (const uint64_t size : read_integers(entry, "shape", where)) {
    // The product is held to the file's size at every step, so it cannot overflow.
    REPRISE_REQUIRE(size <= kMaxSize && (size == 0 || bytes <= data.size() / size), where,
                    " wanted a shape that fits the file's ", data.size(), " bytes of data but got ",
                    entry["shape"].dump(), " of ", facts_of(tensor.dtype).name);
    bytes *= size;
    tensor.shape.push_back(static_cast<int64_t>(size));
  }
  REPRISE_REQUIRE(offsets[1] - offsets[0] == bytes, where, " wanted ", bytes, " bytes for shape ",
                  entry["shape"].dump(), " of ", facts_of(tensor.dtype).name, " but data_offsets span ",
                  offsets[1] - offsets[0]);
  tensor.data = data.subspan(offsets[0], bytes);
  return tensor;
}

// The format allows neither overlaps nor holes: one of them means that an offset lies.
void check_layout(const std::map<std::string, StoredTensor>& tensors, std::span<const std::byte> data,
                  const std::string& path) {
  std::vector<std::pair<std::string, std::span<const std::byte>>> parts;
  for (const auto& [name, tensor] : tensors) parts.emplace_back(name, tensor.data);
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second.data(), a.second.size()) < std::pair(b.second.data(), b.second.size());
  });
  const std::byte* end = data.data();
  for (const auto& [name, part] : parts) {
    REPRISE_REQUIRE(part.data() == end, "[", path, "] tensor ", name,
                    " wanted to begin where the one before it ends, at ", end - data.data(),
                    ", but its data_offsets begin at ", part.data() - data.data());
    end += part.size();
  }
  const auto used = static_cast<size_t>(end - data.data());
  REPRISE_REQUIRE(used == data.size(), "[", path, "] wanted ", used, " bytes of data, as the header says, but got ",
                  data.size());
}

}  // namespace

std::string_view dtype_name(StoredDtype dtype) { return facts_of(dtype).name; }

int64_t dtype_bytes(StoredDtype dtype) { return facts_of(dtype).bytes; }

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  const std::string_view header = header_text(file_);
  const auto data = file_.bytes().subspan(kLengthBytes + header.size());
  const json entries = parse_json_object(header, path + ": header");
  for (const auto& [name, entry] : entries.items()) {
    if (name == "__metadata__") continue;
    tensors_.emplace(name, read_entry(entry, data, concat("[", path, "] tensor ", name)));
  }
  check_layout(tensors_, data, path);
}

}  // namespace reprise
