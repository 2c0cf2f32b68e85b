#include "memory/tensor_tape.h"

#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace reprise {
namespace {

at::Tensor floats(int64_t rows) { return empty_tensor({rows, 2}, at::kFloat); }

// Work of three steps whose first result is needed to its end.
std::vector<const void*> run(TensorTape& tape) {
  const TensorSourceScope scope(tape);
  std::vector<const void*> places;
  const at::Tensor kept = floats(3);
  places.push_back(kept.const_data_ptr());
  for (int step = 0; step < 2; ++step) {
    const at::Tensor passing = floats(3);
    const at::Tensor other = floats(4);
    places.push_back(passing.const_data_ptr());
    places.push_back(other.const_data_ptr());
  }
  return places;
}

TEST(TensorTapeTest, EveryRunGetsTheTensorsOfTheFirst) {
  TensorTape tape;
  const auto first = run(tape);
  EXPECT_NE(first[0], first[1]) << "what is in use is not given twice";
  EXPECT_EQ(first[3], first[1]) << "what was let go of serves again";
  EXPECT_EQ(first[4], first[2]);
  for (int time = 0; time < 2; ++time) {
    tape.rewind();
    EXPECT_EQ(run(tape), first);
  }
}

TEST(TensorTapeTest, MemoryThatAViewHoldsIsInUse) {
  const c10::InferenceMode inference;  // elsewhere a view keeps its tensor too
  TensorTape tape;
  const TensorSourceScope scope(tape);
  const at::Tensor view = floats(3).narrow(0, 1, 2);
  const at::Tensor other = floats(3);
  EXPECT_FALSE(other.is_alias_of(view));
}

TEST(TensorTapeTest, OtherKindsTakeMemoryOfTheirOwn) {
  TensorTape tape;
  const TensorSourceScope scope(tape);
  const void* first = empty_tensor({4, 2}, at::kFloat).const_data_ptr();
  EXPECT_NE(empty_tensor({4, 2}, at::kInt).const_data_ptr(), first);
  EXPECT_NE(empty_tensor({2, 4}, at::kFloat).const_data_ptr(), first);
  EXPECT_EQ(empty_tensor({4, 2}, at::kFloat).const_data_ptr(), first);
}

TEST(TensorTapeTest, SaysWhenARunTakesAnotherWay) {
  TensorTape tape;
  run(tape);
  const TensorSourceScope scope(tape);
  tape.rewind();
  EXPECT_THROW(floats(4), std::logic_error) << "another shape";
  tape.rewind();
  run(tape);
  EXPECT_THROW(floats(3), std::logic_error) << "one more";
}

}  // namespace
}  // namespace reprise
