#include "memory/free_memory.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

namespace reprise {

namespace {

namespace fs = std::filesystem;

// The number that stands in the file by itself; "max" is none.
std::optional<int64_t> read_number(const fs::path& path) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

// The number that stands behind `key` at the beginning of a line.
std::optional<int64_t> read_field(const fs::path& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t value = 0;
    if (words >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

// What the names of a control group's files are, by version.
struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* reclaimable;
};
constexpr GroupFiles kFilesV2 = {"memory.max", "memory.current", "inactive_file"};
constexpr GroupFiles kFilesV1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};

// The least that the group and those around it leave. In a container the path may be the host's, of which only the
// mount itself is to be seen: folders that are not there limit nothing.
int64_t left_in_groups(const fs::path& mount, const std::string& group, const GroupFiles& files, int64_t most) {
  const fs::path relative = fs::path(group).relative_path();
  for (fs::path part = relative;; part = part.parent_path()) {
    const fs::path folder = mount / part;
    const auto limit = read_number(folder / files.limit);
    const auto usage = read_number(folder / files.usage);
    if (limit && usage) {
      const int64_t reclaimable = read_field(folder / "memory.stat", files.reclaimable).value_or(0);
      most = std::min(most, std::max<int64_t>(*limit - std::max<int64_t>(*usage - reclaimable, 0), 0));
    }
    if (part.empty()) return most;
  }
}

// The soft limit of the process that stands behind `name` in proc/self/limits; "unlimited" is none.
std::optional<int64_t> read_limit(const fs::path& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
    std::istringstream rest(line.substr(name.size()));
    int64_t value = 0;
    return rest >> value ? std::optional(value) : std::nullopt;
  }
  return std::nullopt;
}

// What the process has of what each of its limits counts.
struct ProcessLimit {
  const char* limit;
  const char* usage;  // in proc/self/status
};
constexpr ProcessLimit kProcessLimits[] = {{"Max address space", "VmSize:"}, {"Max data size", "VmData:"}};

}  // namespace

int64_t free_memory(const std::string& proc, const std::string& cgroup) {
  const auto available_kib = read_field(fs::path(proc) / "meminfo", "MemAvailable:");
  int64_t free = available_kib
                     ? *available_kib * 1024
                     : static_cast<int64_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  // Lines "id:controllers:path"; version 2 has the id 0 and names no controllers.
  std::ifstream groups(fs::path(proc) / "self" / "cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") free = left_in_groups(cgroup, group, kFilesV2, free);
    if (controllers.find(",memory,") != std::string::npos) {
      free = left_in_groups(fs::path(cgroup) / "memory", group, kFilesV1, free);
    }
  }
  const fs::path self = fs::path(proc) / "self";
  for (const auto& [name, usage] : kProcessLimits) {
    const auto limit = read_limit(self / "limits", name);
    const auto used_kib = read_field(self / "status", usage);
    if (limit && used_kib) free = std::min(free, std::max<int64_t>(*limit - *used_kib * 1024, 0));
  }
  return free;
}

}  // namespace reprise
