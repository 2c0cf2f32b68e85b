# Debian's libgtest-dev where it is installed, else the release archive.
find_package(GTest 1.12 QUIET)
if(NOT GTest_FOUND)
  message(STATUS "GoogleTest not found (Debian: apt install libgtest-dev); fetching 1.14.0")
  include(FetchContent)
  set(INSTALL_GTEST OFF)
  set(BUILD_GMOCK OFF)
  FetchContent_Declare(googletest
    URL https://github.com/google/googletest/archive/refs/tags/v1.14.0.tar.gz
    URL_HASH SHA256=8ad598c73ad796e0d8280b082cebd82a630d73e73cd3c70057938a6501bba5d7
    DOWNLOAD_EXTRACT_TIMESTAMP TRUE)
  FetchContent_MakeAvailable(googletest)
endif()
