#include "checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "reprise/error.h"

namespace reprise {
namespace {

// Closes a file descriptor when the scope ends.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  REPRISE_REQUIRE(file.get() >= 0, "[", path, "] wanted a readable file but got: ", std::strerror(errno));
  struct stat status{};
  REPRISE_REQUIRE(::fstat(file.get(), &status) == 0, "[", path, "] could not be examined: ", std::strerror(errno));
  REPRISE_REQUIRE(S_ISREG(status.st_mode), "[", path, "] wanted a regular file but got something else");
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) return;  // an empty mapping is not allowed
  void* start = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  REPRISE_REQUIRE(start != MAP_FAILED, "[", path, "] could not be mapped into memory: ", std::strerror(errno));
  bytes_ = {static_cast<const std::byte*>(start), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::release(std::span<const std::byte> part) const {
  if (part.empty()) return;
  // Whole pages around `part`: what neighbours lose they read again. Advice only, so a refusal does no harm.
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = static_cast<size_t>(part.data() - bytes_.data()) / page * page;
  const auto end = static_cast<size_t>(part.data() - bytes_.data()) + part.size();
  ::madvise(const_cast<std::byte*>(bytes_.data()) + begin, end - begin, MADV_DONTNEED);
}

}  // namespace reprise
