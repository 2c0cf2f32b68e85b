#pragma once

#include <cstdint>
#include <string>

namespace reprise {

// Bytes that this process may still take without swapping: what the machine has, memory that the page cache would give
// back included, and no more than the memory control groups of the process (cgroup v2 or v1, at their usual mount) and
// its own limits (ulimit -v and -d) leave it. The folders are parameters for tests.
int64_t free_memory(const std::string& proc = "/proc", const std::string& cgroup = "/sys/fs/cgroup");

}  // namespace reprise
