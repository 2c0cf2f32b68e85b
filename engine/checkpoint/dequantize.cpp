#include "checkpoint/dequantize.h"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "reprise/error.h"

namespace reprise {
namespace {

constexpr int64_t kGroup = 32;                    // channels (and rows of a block) that share a scale
constexpr int64_t kSlabBytes = 16 * 1024 * 1024;  // of the file, between two releases
constexpr int64_t kGrainBytes = 64 * 1024;        // of the file, least work for a thread
constexpr std::byte kNanScale{0xff};

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

// E4M3: sign, 4 exponent bits (bias 7), 3 mantissa bits; no infinities, all ones is NaN.
const std::array<float, 256>& e4m3_values() {
  static const auto values = [] {
    std::array<float, 256> table{};
    for (int code = 0; code < 256; ++code) {
      const int exponent = (code >> 3) & 15;
      const int mantissa = code & 7;
      float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                  : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
      if ((code & 127) == 127) value = std::numeric_limits<float>::quiet_NaN();
      table[static_cast<size_t>(code)] = (code & 128) != 0 ? -value : value;
    }
    return table;
  }();
  return values;
}

// E8M0: 2^(code - 127).
const std::array<float, 256>& e8m0_values() {
  static const auto values = [] {
    std::array<float, 256> table{};
    for (int code = 0; code < 255; ++code) table[static_cast<size_t>(code)] = std::ldexp(1.0f, code - 127);
    table[255] = std::numeric_limits<float>::quiet_NaN();
    return table;
  }();
  return values;
}

// E2M1: sign, 2 exponent bits (bias 1), 1 mantissa bit.
constexpr std::array<float, 16> kE2M1Values = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                               -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

template <typename In, typename Out>
void convert(const std::byte* in, Out* out, int64_t count) {
  if constexpr (std::is_same_v<In, Out>) {
    std::memcpy(out, in, static_cast<size_t>(count) * sizeof(In));
  } else {
    for (int64_t i = 0; i < count; ++i) {
      In value;
      std::memcpy(&value, in + i * static_cast<int64_t>(sizeof(In)), sizeof(In));  // the file aligns nothing
      out[i] = static_cast<Out>(static_cast<float>(value));
    }
  }
}

template <typename Out>
void convert_plain(StoredDtype dtype, const std::byte* in, Out* out, int64_t count) {
  switch (dtype) {
    case StoredDtype::kF32:
      return convert<float>(in, out, count);
    case StoredDtype::kBF16:
      return convert<c10::BFloat16>(in, out, count);
    case StoredDtype::kF16:
      return convert<c10::Half>(in, out, count);
    case StoredDtype::kF64:
      return convert<double>(in, out, count);
    default:
      REPRISE_ENSURE(false, "no plain format: ", dtype_name(dtype));
  }
}

template <typename Out>
void scale_fp8_row(const std::byte* in, const std::byte* scales, Out* out, int64_t columns) {
  const auto& values = e4m3_values();
  for (int64_t begin = 0; begin < columns; begin += kGroup) {
    const float scale = e8m0_values()[std::to_integer<size_t>(scales[begin / kGroup])];
    const int64_t end = std::min(begin + kGroup, columns);
    for (int64_t i = begin; i < end; ++i) out[i] = static_cast<Out>(values[std::to_integer<size_t>(in[i])] * scale);
  }
}

template <typename Out>
void scale_fp4_row(const std::byte* in, const std::byte* scales, Out* out, int64_t columns) {
  for (int64_t i = 0; i < columns; i += 2) {
    const float scale = e8m0_values()[std::to_integer<size_t>(scales[i / kGroup])];
    const auto pair = std::to_integer<size_t>(in[i / 2]);
    out[i] = static_cast<Out>(kE2M1Values[pair & 15] * scale);
    out[i + 1] = static_cast<Out>(kE2M1Values[pair >> 4] * scale);
  }
}

// Calls work(begin, end) on ranges of [0, units) in parallel, one slab of the file after the other.
template <typename Work>
void for_slabs(std::span<const std::byte> data, int64_t units, const Work& work,
               const std::function<void(std::span<const std::byte>)>& release) {
  if (units == 0) return;
  const int64_t unit_bytes = std::max<int64_t>(1, static_cast<int64_t>(data.size()) / units);
  const int64_t slab = std::max<int64_t>(1, kSlabBytes / unit_bytes);
  const int64_t grain = std::max<int64_t>(1, kGrainBytes / unit_bytes);
  for (int64_t begin = 0; begin < units; begin += slab) {
    const int64_t end = std::min(begin + slab, units);
    at::parallel_for(begin, end, grain, work);
    release(data.subspan(static_cast<size_t>(begin * unit_bytes), static_cast<size_t>((end - begin) * unit_bytes)));
  }
}

template <typename Out>
void dequantize_as(const StoredTensor& weight, const StoredTensor* scale, WeightFormat format, Out* out,
                   const std::function<void(std::span<const std::byte>)>& release) {
  const std::byte* in = weight.data.data();
  if (format == WeightFormat::kPlain) {
    const int64_t size = dtype_bytes(weight.dtype);
    const auto work = [&](int64_t begin, int64_t end) {
      convert_plain(weight.dtype, in + begin * size, out + begin, end - begin);
    };
    return for_slabs(weight.data, static_cast<int64_t>(weight.data.size()) / size, work, release);
  }
  const int64_t rows = weight.shape[0];
  const int64_t row_bytes = weight.shape[1];
  const int64_t columns = format == WeightFormat::kFp4Rows ? 2 * row_bytes : row_bytes;
  const int64_t rows_per_scale = format == WeightFormat::kFp8Blocks ? kGroup : 1;
  const auto work = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const std::byte* scales = scale->data.data() + row / rows_per_scale * scale->shape[1];
      const auto scale_row = format == WeightFormat::kFp4Rows ? scale_fp4_row<Out> : scale_fp8_row<Out>;
      scale_row(in + row * row_bytes, scales, out + row * columns, columns);
    }
  };
  for_slabs(weight.data, rows, work, release);
}

}  // namespace

std::vector<int64_t> unpacked_shape(const StoredTensor& weight) {
  std::vector<int64_t> shape = weight.shape;
  if (weight.dtype == StoredDtype::kI8 && !shape.empty()) shape.back() *= 2;
  return shape;
}

bool needs_scale(StoredDtype dtype) { return dtype == StoredDtype::kF8E4M3 || dtype == StoredDtype::kI8; }

WeightFormat weight_format(const StoredTensor& weight, const StoredTensor* scale, const std::string& name) {
  if (!needs_scale(weight.dtype)) {
    const bool plain = weight.dtype == StoredDtype::kF32 || weight.dtype == StoredDtype::kBF16 ||
                       weight.dtype == StoredDtype::kF16 || weight.dtype == StoredDtype::kF64;
    REPRISE_REQUIRE(plain, name, ": wanted F32, BF16, F16, F64, F8_E4M3 or packed FP4 in I8 but got ",
                    dtype_name(weight.dtype));
    return WeightFormat::kPlain;
  }
  REPRISE_REQUIRE(scale != nullptr, name, ": wanted a .scale beside a weight of dtype ", dtype_name(weight.dtype),
                  " but there is none");
  REPRISE_REQUIRE(weight.shape.size() == 2, name, ": wanted a matrix for dtype ", dtype_name(weight.dtype),
                  " but got shape ", shape_text(weight.shape));
  REPRISE_REQUIRE(scale->dtype == StoredDtype::kF8E8M0, name, ": wanted its .scale in F8_E8M0 but got ",
                  dtype_name(scale->dtype));
  const auto shape = unpacked_shape(weight);
  const std::vector<int64_t> by_row = {shape[0], ceil_div(shape[1], kGroup)};
  const std::vector<int64_t> by_block = {ceil_div(shape[0], kGroup), ceil_div(shape[1], kGroup)};
  if (weight.dtype == StoredDtype::kI8) {
    REPRISE_REQUIRE(scale->shape == by_row, name, ": wanted its .scale of shape ", shape_text(by_row), " but got ",
                    shape_text(scale->shape));
    return WeightFormat::kFp4Rows;
  }
  if (scale->shape == by_block) return WeightFormat::kFp8Blocks;
  REPRISE_REQUIRE(scale->shape == by_row, name, ": wanted its .scale of shape ", shape_text(by_block), " (blocks) or ",
                  shape_text(by_row), " (rows) but got ", shape_text(scale->shape));
  return WeightFormat::kFp8Rows;
}

void dequantize(const StoredTensor& weight, const StoredTensor* scale, WeightFormat format,
                const at::Tensor& destination, const std::string& name,
                const std::function<void(std::span<const std::byte>)>& release) {
  const auto shape = unpacked_shape(weight);
  const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  REPRISE_ENSURE(destination.is_contiguous() && destination.numel() == count, "destination of ", name);
  if (format != WeightFormat::kPlain) {
    const auto bad = std::find(scale->data.begin(), scale->data.end(), kNanScale);
    REPRISE_REQUIRE(bad == scale->data.end(), name, ": wanted finite scales but its .scale is NaN at element ",
                    bad - scale->data.begin());
  }
  if (destination.scalar_type() == at::kFloat) {
    dequantize_as(weight, scale, format, destination.mutable_data_ptr<float>(), release);
  } else {
    REPRISE_ENSURE(destination.scalar_type() == at::kBFloat16, "destination of ", name);
    dequantize_as(weight, scale, format, destination.mutable_data_ptr<c10::BFloat16>(), release);
  }
}

}  // namespace reprise
