#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace reprise::testing {

// A tensor to write: its dtype by the format's name, its elements as raw bytes.
struct RawTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

template <typename T>
std::string raw_bytes(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// A safetensors file with any header, honest or not.
inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  const auto length = static_cast<uint64_t>(header.size());
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
  return bytes + header + data;
}

inline std::string safetensors_bytes(const std::vector<RawTensor>& tensors) {
  std::string header = "{\"__metadata__\":{\"format\":\"pt\"}";
  std::string data;
  for (const auto& tensor : tensors) {
    std::string shape;
    for (const int64_t size : tensor.shape) shape += (shape.empty() ? "" : ",") + std::to_string(size);
    header += ",\"" + tensor.name + "\":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":[" + shape +
              "],\"data_offsets\":[" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + tensor.bytes.size()) + "]}";
    data += tensor.bytes;
  }
  return safetensors_bytes(header + "}", data);
}

}  // namespace reprise::testing
