#pragma once

#include <cstddef>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace reprise {

// Bytes of the UTF-8 character that `text` begins with; 0 when it begins with none.
inline size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto between = [&](size_t i, unsigned least, unsigned most) { return byte(i) >= least && byte(i) <= most; };
  const auto follows = [&](size_t i) { return between(i, 0x80, 0xbf); };
  if (text.empty()) return 0;
  if (byte(0) < 0x80) return 1;
  if (between(0, 0xc2, 0xdf)) return follows(1) ? 2 : 0;
  if (between(0, 0xe0, 0xef)) {  // neither a longer spelling than needed nor a surrogate
    return between(1, byte(0) == 0xe0 ? 0xa0 : 0x80, byte(0) == 0xed ? 0x9f : 0xbf) && follows(2) ? 3 : 0;
  }
  if (between(0, 0xf0, 0xf4)) {
    return between(1, byte(0) == 0xf0 ? 0x90 : 0x80, byte(0) == 0xf4 ? 0x8f : 0xbf) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

// Text from a file or a path as a message may hold it: bytes that are no UTF-8, and control characters other than line
// breaks and tabs, as \xNN.
inline std::string printable(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const auto first = static_cast<unsigned char>(text[0]);
    const bool control = (first < 0x20 && first != '\n' && first != '\t') || first == 0x7f;
    const size_t length = control ? 0 : utf8_length(text);
    if (length == 0) {
      result.append("\\x").append(1, kDigits[first >> 4]).append(1, kDigits[first & 15]);
    } else {
      result.append(text.substr(0, length));
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return result;
}

// Joins its arguments with operator<<, as printable text; used for error messages.
template <typename... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return printable(out.str());
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
