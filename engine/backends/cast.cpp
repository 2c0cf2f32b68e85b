#include "backends/cast.h"

#include "backends/kernels.h"
#include "backends/room.h"
#include "memory/tensor_source.h"
#include "reprise/error.h"

namespace reprise {

namespace {

at::Tensor cast_to(const at::Tensor& x, at::ScalarType dtype) {
  at::Tensor y = empty_tensor(x.sizes(), x.options().dtype(dtype));
  room_of(x).cast(x, y);
  return y;
}

}  // namespace

at::Tensor to_float(const at::Tensor& x) {
  if (x.scalar_type() == at::kFloat) return x;
  REPRISE_ENSURE(x.is_contiguous(), "to_float takes a dense tensor");
  return cast_to(x, at::kFloat);
}

at::Tensor cast_rows(const at::Tensor& x, at::ScalarType dtype) {
  if (x.scalar_type() == dtype) return x;
  REPRISE_ENSURE(x.is_contiguous() && x.scalar_type() == at::kFloat, "cast_rows takes a dense float32 tensor");
  return cast_to(x, dtype);
}

void read_floats(const at::Tensor& x, std::span<float> out) {
  REPRISE_ENSURE(x.is_contiguous() && x.numel() == static_cast<int64_t>(out.size()),
                 "read_floats takes a dense tensor and room for each of its values");
  room_of(x).read_floats(x, out);
}

}  // namespace reprise
