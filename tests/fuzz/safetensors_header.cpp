// A weights file of any bytes is refused with std::invalid_argument, or its tensors lie inside it.
// The first byte is the number of bytes of data that follow the rest as a header; 255: the rest is the whole file.
#include <stdexcept>

#include "checkpoint/safetensors.h"
#include "fuzz_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const reprise::fuzzing::Folder folder;
  if (size == 0) return 0;
  std::string rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string file = data[0] == 255 ? rest : reprise::fuzzing::safetensors_file(rest, data[0]);
  const std::string path = folder.write("model.safetensors", reprise::fuzzing::bytes_of(file));
  try {
    const reprise::SafetensorsFile weights(path);
    volatile unsigned sum = 0;
    for (const auto& [name, tensor] : weights.tensors()) {
      for (const std::byte byte : tensor.read()) sum = sum + std::to_integer<unsigned>(byte);
    }
  } catch (const std::invalid_argument&) {
  }
  return 0;
}
