#pragma once

#include <cstddef>
#include <cstdint>

namespace reprise::cpu {

class ScratchArena;

// Memory of this thread for as long as the frame lives, from an arena that stays from call to call: a frame costs no
// allocation once the arena has grown to what its thread needs. Frames nest, the last one made ends first.
class ScratchFrame {
 public:
  ScratchFrame();
  ~ScratchFrame();
  ScratchFrame(const ScratchFrame&) = delete;
  ScratchFrame& operator=(const ScratchFrame&) = delete;

  // `count` values of a type that needs no construction, of arbitrary contents and 64-byte aligned. They stay where
  // they are until the frame ends. The innermost frame alone may take.
  template <typename T>
  T* take(int64_t count) {
    return reinterpret_cast<T*>(bytes(static_cast<size_t>(count) * sizeof(T)));
  }

 private:
  std::byte* bytes(size_t size);

  ScratchArena& arena_;
  size_t block_;  // where the frame began
  size_t used_;
};

// While one lives, what frames of any thread hand out is all ones: NaN as a number, -1 as an integer. For tests: a
// kernel that reads what it has not written shows.
class ScratchPoison {
 public:
  ScratchPoison();
  ~ScratchPoison();
  ScratchPoison(const ScratchPoison&) = delete;
  ScratchPoison& operator=(const ScratchPoison&) = delete;
};

}  // namespace reprise::cpu
