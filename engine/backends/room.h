#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace reprise {

// A room is one implementation of every kernel, and its table (kernels.h) stands for it.
struct Kernels;

// The room in scope on this thread, else that of the device. Throws std::invalid_argument for a device that this build
// has no kernels for.
const Kernels& room_of(c10::Device device);
inline const Kernels& room_of(const at::Tensor& x) { return room_of(x.device()); }

// Kernels that this thread calls run in `room` for the lifetime of the scope, whatever their tensors' device; weights
// packed within belong to it.
class RoomScope {
 public:
  explicit RoomScope(const Kernels& room);
  ~RoomScope();
  RoomScope(const RoomScope&) = delete;
  RoomScope& operator=(const RoomScope&) = delete;

 private:
  const Kernels* outer_;
};

}  // namespace reprise
