// libtorch exports parts of a standard library too. Ours is the compiler's.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace reprise {
namespace {

TEST(StandardLibrary, IsNotTakenFromLibtorch) {
  auto* function = static_cast<std::uintmax_t (*)(const std::filesystem::path&)>(&std::filesystem::remove_all);
  Dl_info info{};
  ASSERT_NE(dladdr(reinterpret_cast<void*>(function), &info), 0);
  EXPECT_NE(std::string(info.dli_fname).find("libstdc++"), std::string::npos) << info.dli_fname;
}

}  // namespace
}  // namespace reprise
