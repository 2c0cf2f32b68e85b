#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace reprise {

// A file mapped read-only for the lifetime of the object.
class MappedFile {
 public:
  // Throws std::invalid_argument when the file cannot be opened or mapped.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

  // Takes the pages of `part` (of bytes()) out of this process's memory; reading them again brings them back.
  void release(std::span<const std::byte> part) const;

 private:
  std::string path_;
  std::span<const std::byte> bytes_;
};

}  // namespace reprise
