#include "memory/free_memory.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "../temporary_folder.h"

namespace reprise {
namespace {

using testing::TemporaryFolder;

constexpr int64_t kMiB = 1 << 20;

class FakeMachine {
 public:
  explicit FakeMachine(const std::string& groups) {
    write("proc/meminfo", "MemTotal:       16000000 kB\nMemFree:          102400 kB\nMemAvailable:    1024000 kB\n");
    write("proc/self/cgroup", groups);
  }
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(folder_ / path).parent_path());
    folder_.write(path, text);
  }
  int64_t free() const { return free_memory(folder_ / "proc", folder_ / "cgroup"); }

 private:
  TemporaryFolder folder_;
};

TEST(FreeMemory, CountsWhatThePageCacheWouldGiveBack) { EXPECT_EQ(FakeMachine("0::/\n").free(), 1000 * kMiB); }

TEST(FreeMemory, StaysBelowTheLimitsOfControlGroups) {
  FakeMachine machine("0::/outer/inner\n");
  machine.write("cgroup/outer/memory.max", std::to_string(500 * kMiB) + "\n");
  machine.write("cgroup/outer/memory.current", std::to_string(300 * kMiB) + "\n");
  machine.write("cgroup/outer/inner/memory.max", "max\n");
  machine.write("cgroup/outer/inner/memory.current", std::to_string(250 * kMiB) + "\n");
  EXPECT_EQ(machine.free(), 200 * kMiB);
  machine.write("cgroup/outer/memory.stat", "anon 12345\ninactive_file " + std::to_string(100 * kMiB) + "\n");
  EXPECT_EQ(machine.free(), 300 * kMiB);
  machine.write("cgroup/outer/memory.current", std::to_string(700 * kMiB) + "\n");
  EXPECT_EQ(machine.free(), 0);
}

TEST(FreeMemory, FindsTheMountOfAContainer) {
  FakeMachine machine("0::/a/path/of/the/host\n");
  machine.write("cgroup/memory.max", std::to_string(64 * kMiB));
  machine.write("cgroup/memory.current", std::to_string(24 * kMiB));
  EXPECT_EQ(machine.free(), 40 * kMiB);
}

TEST(FreeMemory, KnowsVersion1) {
  FakeMachine machine("12:cpu,cpuacct:/x\n5:memory:/job\n1:name=systemd:/\n");
  machine.write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // how version 1 says none
  machine.write("cgroup/memory/memory.usage_in_bytes", "0\n");
  EXPECT_EQ(machine.free(), 1000 * kMiB);
  machine.write("cgroup/memory/job/memory.limit_in_bytes", std::to_string(80 * kMiB));
  machine.write("cgroup/memory/job/memory.usage_in_bytes", std::to_string(50 * kMiB));
  machine.write("cgroup/memory/job/memory.stat", "total_inactive_file " + std::to_string(10 * kMiB) + "\n");
  EXPECT_EQ(machine.free(), 40 * kMiB);
}

TEST(FreeMemory, StaysBelowTheLimitsOfTheProcess) {
  FakeMachine machine("0::/\n");
  machine.write("proc/self/status", "Name:\tx\nVmSize:\t  204800 kB\nVmData:\t  102400 kB\n");
  const auto limits = [&](const std::string& data, const std::string& address_space) {
    machine.write("proc/self/limits",
                  "Limit                     Soft Limit           Hard Limit           Units     \n"
                  "Max data size             " +
                      data +
                      "            unlimited            bytes     \n"
                      "Max address space         " +
                      address_space + "            unlimited            bytes     \n");
    return machine.free();
  };
  EXPECT_EQ(limits("unlimited", "unlimited"), 1000 * kMiB);
  EXPECT_EQ(limits("unlimited", std::to_string(500 * kMiB)), 300 * kMiB);
  EXPECT_EQ(limits(std::to_string(250 * kMiB), std::to_string(500 * kMiB)), 150 * kMiB);
  EXPECT_EQ(limits("unlimited", std::to_string(100 * kMiB)), 0);
}

TEST(FreeMemory, AsksTheSystemWhereThereIsNoProc) {
  EXPECT_GT(free_memory("/nowhere", "/nowhere"), 0);
  EXPECT_GT(free_memory(), 0);
}

}  // namespace
}  // namespace reprise
