#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>

namespace reprise::fuzzing {

using Bytes = std::span<const uint8_t>;

// A folder of the process's own for the file that is mutated and those beside it; removed with the process.
class Folder {
 public:
  Folder() { std::filesystem::create_directories(path_); }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path() const { return path_.string(); }

  // Returns the file's path.
  std::string write(const std::string& name, Bytes bytes) const {
    const std::string file = (path_ / name).string();
    std::ofstream(file, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return file;
  }

 private:
  std::filesystem::path path_ = std::filesystem::temp_directory_path() / ("reprise_fuzz_" + std::to_string(::getpid()));
};

// A safetensors file: the header's length, the header and as many bytes of data.
inline std::string safetensors_file(std::string_view header, size_t data_bytes) {
  std::string file;
  for (size_t i = 0; i < 8; ++i) file += static_cast<char>((header.size() >> (8 * i)) & 0xff);
  return file.append(header).append(data_bytes, '\1');
}

inline Bytes bytes_of(const std::string& text) { return {reinterpret_cast<const uint8_t*>(text.data()), text.size()}; }

}  // namespace reprise::fuzzing
