#include "checkpoint/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "reprise/error.h"

namespace reprise {
namespace {

constexpr std::string_view kLfsPointer = "version https://git-lfs";

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "something else";
}

std::string why_not_open(const std::string& path, int error) {
  struct stat link{};
  if (error == ENOENT && ::lstat(path.c_str(), &link) == 0 && S_ISLNK(link.st_mode)) {
    std::error_code ignored;
    return concat("a link to nothing (", std::filesystem::read_symlink(path, ignored).native(),
                  "); is the download complete?");
  }
  if (error == ELOOP) return "a link that leads back to itself";
  return std::strerror(error);
}

int64_t nanoseconds(const timespec& time) { return int64_t{time.tv_sec} * 1000000000 + time.tv_nsec; }

}  // namespace

bool stands_at(const std::string& path) {
  struct stat link{};
  return ::lstat(path.c_str(), &link) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

RegularFile::RegularFile(const std::string& path) : path_(path) {
  // Looked at first: opening a pipe waits for a writer, and opening a device may do anything.
  struct stat status{};
  REPRISE_REQUIRE(::stat(path.c_str(), &status) == 0, "[", path,
                  "] wanted a regular file but got: ", why_not_open(path, errno));
  REPRISE_REQUIRE(S_ISREG(status.st_mode), "[", path, "] wanted a regular file but got ", kind_of(status.st_mode));
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  REPRISE_REQUIRE(descriptor_ >= 0, "[", path, "] wanted a readable file but got: ", why_not_open(path, errno));
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    throw std::invalid_argument(concat("[", path, "] wanted a regular file but got ", kind_of(status.st_mode)));
  }
  size_ = static_cast<uint64_t>(status.st_size);
  modified_ns_ = nanoseconds(status.st_mtim);
}

RegularFile::~RegularFile() { ::close(descriptor_); }

void RegularFile::read(uint64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t got = ::pread(descriptor_, to.data(), to.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw std::runtime_error(concat("[", path_, "] could not be read: ", std::strerror(errno)));
    if (got == 0) {
      throw std::runtime_error(concat("[", path_, "] wanted ", size_,
                                      " bytes, as when it was opened, but the file now ends at ", offset,
                                      ": it was cut short while it was read; is something still writing it?"));
    }
    offset += static_cast<uint64_t>(got);
    to = to.subspan(static_cast<size_t>(got));
  }
}

void RegularFile::check_unchanged() const {
  struct stat status{};
  if (::fstat(descriptor_, &status) == 0 && static_cast<uint64_t>(status.st_size) == size_ &&
      nanoseconds(status.st_mtim) == modified_ns_) {
    return;
  }
  throw std::runtime_error(concat("[", path_, "] was written to while it was read; load again when it is complete"));
}

std::string read_text_file(const std::string& path, uint64_t most) {
  const RegularFile file(path);
  REPRISE_REQUIRE(file.size() <= most, "[", path, "] wanted a file of at most ", most, " bytes but got ", file.size());
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  refuse_lfs_pointer(text, path);
  return text;
}

void refuse_lfs_pointer(std::string_view beginning, const std::string& path) {
  REPRISE_REQUIRE(!beginning.starts_with(kLfsPointer), "[", path,
                  "] wanted the file itself but got a Git LFS pointer to it; run `git lfs pull` in its folder");
}

}  // namespace reprise
