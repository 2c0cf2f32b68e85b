#include "backends/room.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "backends/kernels.h"
#include "kernel_testing.h"

namespace reprise {
namespace {

// A room like the CPU's but for one kernel.
at::Tensor no_norm(const at::Tensor& x, const at::Tensor&, double) { return x; }

Kernels other_kernels() {
  Kernels kernels = cpu_kernels();
  kernels.rms_norm = no_norm;
  return kernels;
}

TEST(Room, IsThatOfTheTensorsDevice) {
  EXPECT_EQ(&room_of(at::empty({1})), &cpu_kernels());
  EXPECT_THROW(room_of(at::Device(at::kMeta)), std::invalid_argument);
}

TEST(RoomScope, SendsThisThreadsKernelsToItsRoom) {
  const Kernels other = other_kernels();
  const at::Tensor x = at::full({2, 2}, 5.0, at::kFloat);
  const at::Tensor weight = tensor_of<float>({3, 7});
  const auto norm = [&] { return doubles(rms_norm(x, weight, 0)); };
  {
    const RoomScope scope(other);
    EXPECT_EQ(norm(), (std::vector<double>{5, 5, 5, 5}));
    {
      const RoomScope inner(cpu_kernels());
      EXPECT_EQ(norm(), (std::vector<double>{3, 7, 3, 7}));
    }
    EXPECT_EQ(&room_of(at::Device(at::kMeta)), &other);
    EXPECT_EQ(&room_of(x), &other);
    std::thread([&] { EXPECT_EQ(&room_of(x), &cpu_kernels()); }).join();
  }
  EXPECT_EQ(&room_of(x), &cpu_kernels());
}

TEST(RoomScope, WeightsBelongToTheRoomThatPackedThem) {
  const Kernels other = other_kernels();
  std::mt19937 random(39);
  const at::Tensor x = normal({3, 8}, random);
  const PackedWeight ours(normal({4, 8}, random));
  const RoomScope scope(other);
  const PackedWeight theirs(normal({4, 8}, random));
  EXPECT_THROW(ours.values(other), std::logic_error);
  EXPECT_EQ(theirs.values(other).numel(), 32);
  EXPECT_THROW(theirs.values(cpu_kernels()), std::logic_error);
}

}  // namespace
}  // namespace reprise
