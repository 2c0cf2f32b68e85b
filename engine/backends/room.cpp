#include "backends/room.h"

#include <utility>

#include "backends/kernels.h"
#include "reprise/error.h"

namespace reprise {

namespace {

thread_local const Kernels* room_in_scope = nullptr;

}  // namespace

const Kernels& room_of(c10::Device device) {
  if (room_in_scope != nullptr) return *room_in_scope;
  REPRISE_REQUIRE(device.is_cpu() || device.is_cuda(), "[backends] wanted tensors on a cpu or cuda device but got ",
                  device);
  return device.is_cpu() ? cpu_kernels() : cuda_kernels();
}

RoomScope::RoomScope(const Kernels& room) : outer_(std::exchange(room_in_scope, &room)) {}
RoomScope::~RoomScope() { room_in_scope = outer_; }

}  // namespace reprise
