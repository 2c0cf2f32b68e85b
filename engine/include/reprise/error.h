#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace reprise {

// Joins its arguments with operator<<; used for error messages.
template <typename... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

}  // namespace reprise

// The caller's mistake. The message says what was wanted, what came, and what to do:
//   REPRISE_REQUIRE(n > 0, "[submit] wanted at least one prompt token but got ", n);
// Throws std::invalid_argument (ValueError in Python).
#define REPRISE_REQUIRE(condition, ...)                            \
  do {                                                             \
    if (!(condition)) {                                            \
      throw std::invalid_argument(::reprise::concat(__VA_ARGS__)); \
    }                                                              \
  } while (false)

// Our own bug: an invariant of the library does not hold. Throws std::logic_error.
#define REPRISE_ENSURE(condition, ...)                                                                         \
  do {                                                                                                         \
    if (!(condition)) {                                                                                        \
      throw std::logic_error(                                                                                  \
          ::reprise::concat(__FILE__, ":", __LINE__, ": invariant (", #condition, ") broken: ", __VA_ARGS__)); \
    }                                                                                                          \
  } while (false)
