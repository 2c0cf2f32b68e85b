#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace reprise {

// Whether anything stands at `path`: a link to nothing does too, so that opening it can say so.
bool stands_at(const std::string& path);

// A file open for reading. Its bytes are copied out rather than mapped: a mapped page of a file that another program
// cuts short, or of a disk that fails, would end the process.
class RegularFile {
 public:
  // Throws std::invalid_argument that names the file when it is no regular file or cannot be opened.
  explicit RegularFile(const std::string& path);
  ~RegularFile();
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }  // when it was opened

  // Fills `to` with the bytes from `offset` on; any thread may. Throws std::runtime_error that names the file when it
  // ends before or cannot be read.
  void read(uint64_t offset, std::span<std::byte> to) const;
  // Throws std::runtime_error when the file was written to since it was opened.
  void check_unchanged() const;

 private:
  std::string path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
  int64_t modified_ns_ = 0;  // since the epoch
};

// The whole of a text file of at most `most` bytes. Throws as RegularFile does, and std::invalid_argument for a larger
// one or a Git LFS pointer.
std::string read_text_file(const std::string& path, uint64_t most);

// Throws std::invalid_argument when `beginning`, the first bytes of the file at `path`, is that of a Git LFS pointer.
void refuse_lfs_pointer(std::string_view beginning, const std::string& path);

}  // namespace reprise
