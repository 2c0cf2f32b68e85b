# GoogleTest of the system (Debian: libgtest-dev), or the package or the release archive that set_up.sh has unpacked under
# build/third_party, else the archive. set_up.sh reads URL and hash here.
find_package(GTest 1.12 QUIET)
if(NOT GTest_FOUND)
  find_package(GTest 1.12 CONFIG QUIET PATHS ${REPRISE_UNPACKED}/usr NO_DEFAULT_PATH)
endif()
if(NOT GTest_FOUND)
  include(FetchContent)
  set(INSTALL_GTEST OFF)
  set(BUILD_GMOCK OFF)
  if(IS_DIRECTORY ${REPRISE_UNPACKED}/googletest AND NOT FETCHCONTENT_SOURCE_DIR_GOOGLETEST)
    set(FETCHCONTENT_SOURCE_DIR_GOOGLETEST ${REPRISE_UNPACKED}/googletest)
  else()
    message(STATUS "GoogleTest not found (Debian: apt install libgtest-dev); fetching 1.14.0")
  endif()
  FetchContent_Declare(googletest
    URL https://github.com/google/googletest/archive/refs/tags/v1.14.0.tar.gz
    URL_HASH SHA256=8ad598c73ad796e0d8280b082cebd82a630d73e73cd3c70057938a6501bba5d7
    DOWNLOAD_EXTRACT_TIMESTAMP TRUE)
  FetchContent_MakeAvailable(googletest)
endif()
