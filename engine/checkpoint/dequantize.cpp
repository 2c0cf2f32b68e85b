#include "checkpoint/dequantize.h"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <type_traits>

#include "reprise/error.h"

namespace reprise {
namespace {

constexpr int64_t kGroup = 32;  // channels (and rows of a block) that share a scale
constexpr int64_t kSlabBytes =
    16 * 1024 * 1024;                       // of the file, shared out among the threads: they stay near each other
constexpr int64_t kChunkBytes = 64 * 1024;  // of the file, read at once: stays in a core's cache until it is used
constexpr std::byte kNanScale{0xff};
constexpr int64_t kScanned = 4096;  // values between two looks at whether any is not finite

using Bytes = std::vector<std::byte>;

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
  for (int64_t i = 0; i < count; ++i) {
    In value;
    std::memcpy(&value, in + i * static_cast<int64_t>(sizeof(In)), sizeof(In));
    out[i] = static_cast<Out>(static_cast<float>(value));
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
      REPRISE_ENSURE(false, "no plain format");
  }
}

template <typename Out>
bool is_stored_as(StoredDtype dtype) {
  return dtype == (std::is_same_v<Out, float> ? StoredDtype::kF32 : StoredDtype::kBF16);
}

// The first of `count` values that is infinite or NaN; `count` when none is. Such a value's exponent bits are all ones,
// so that adding one to them carries into the sign's place.
template <typename Out>
int64_t first_not_finite(const Out* values, int64_t count) {
  using Bits = std::conditional_t<std::is_same_v<Out, float>, uint32_t, uint16_t>;
  constexpr auto kExponent = static_cast<Bits>(std::is_same_v<Out, float> ? 0x7f800000u : 0x7f80u);
  constexpr auto kSign = static_cast<Bits>(kExponent + (kExponent & -kExponent));
  static_assert(sizeof(Bits) == sizeof(Out) && kSign == static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1)));
  for (int64_t begin = 0; begin < count; begin += kScanned) {
    const int64_t end = std::min(begin + kScanned, count);
    Bits carried = 0;
    for (int64_t i = begin; i < end; ++i) {
      Bits bits;
      std::memcpy(&bits, values + i, sizeof(bits));
      carried |= static_cast<Bits>((bits & kExponent) + (kExponent & -kExponent));
    }
    if ((carried & kSign) == 0) continue;
    for (int64_t i = begin; i < end; ++i) {
      if (!std::isfinite(static_cast<float>(values[i]))) return i;
    }
  }
  return count;
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

// Where the first value stands that is not finite; threads find several.
class FirstNotFinite {
 public:
  void found(int64_t place) {
    int64_t before = place_.load();
    while (place < before && !place_.compare_exchange_weak(before, place)) {
    }
  }
  bool any() const { return place_.load() != kNone; }
  int64_t place() const { return place_.load(); }

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> place_ = kNone;
};

// Calls work(first, count) in parallel for parts of [0, units), which are `unit_bytes` bytes of the file each: a chunk
// or one unit at a time.
template <typename Work>
void for_chunks(int64_t units, int64_t unit_bytes, const Work& work) {
  const int64_t slab = std::max<int64_t>(1, kSlabBytes / unit_bytes);
  const int64_t chunk = std::max<int64_t>(1, kChunkBytes / unit_bytes);
  for (int64_t start = 0; start < units; start += slab) {
    at::parallel_for(start, std::min(start + slab, units), chunk, [&](int64_t begin, int64_t end) {
      for (int64_t unit = begin; unit < end; unit += chunk) work(unit, std::min(chunk, end - unit));
    });
  }
}

template <typename Out>
void read_plain(const StoredTensor& weight, Out* out, FirstNotFinite& bad) {
  const int64_t size = dtype_bytes(weight.dtype);
  for_chunks(static_cast<int64_t>(weight.bytes) / size, size, [&](int64_t begin, int64_t count) {
    const auto from = static_cast<uint64_t>(begin * size);
    if (is_stored_as<Out>(weight.dtype)) {
      weight.read(from, std::as_writable_bytes(std::span(out + begin, static_cast<size_t>(count))));
    } else {
      Bytes stored(static_cast<size_t>(count * size));
      weight.read(from, stored);
      convert_plain(weight.dtype, stored.data(), out + begin, count);
    }
    const int64_t first = first_not_finite(out + begin, count);
    if (first < count) bad.found(begin + first);
  });
}

template <typename Out>
void read_scaled(const StoredTensor& weight, const Bytes& scales, int64_t scale_columns, WeightFormat format, Out* out,
                 FirstNotFinite& bad) {
  const int64_t row_bytes = weight.shape[1];
  const int64_t columns = format == WeightFormat::kFp4Rows ? 2 * row_bytes : row_bytes;
  const int64_t rows_per_scale = format == WeightFormat::kFp8Blocks ? kGroup : 1;
  const auto scale_row = format == WeightFormat::kFp4Rows ? scale_fp4_row<Out> : scale_fp8_row<Out>;
  if (row_bytes == 0) return;
  for_chunks(weight.shape[0], row_bytes, [&](int64_t begin, int64_t count) {
    Bytes stored(static_cast<size_t>(count * row_bytes));
    weight.read(static_cast<uint64_t>(begin * row_bytes), stored);
    for (int64_t row = begin; row < begin + count; ++row) {
      const std::byte* row_scales = scales.data() + row / rows_per_scale * scale_columns;
      scale_row(stored.data() + (row - begin) * row_bytes, row_scales, out + row * columns, columns);
    }
    const int64_t first = first_not_finite(out + begin * columns, count * columns);
    if (first < count * columns) bad.found(begin * columns + first);
  });
}

template <typename Out>
void dequantize_as(const StoredTensor& weight, const StoredTensor* scale, WeightFormat format, Out* out,
                   const std::string& name) {
  FirstNotFinite bad;
  if (format == WeightFormat::kPlain) {
    read_plain(weight, out, bad);
  } else {
    const Bytes scales = scale->read();
    const auto nan = std::find(scales.begin(), scales.end(), kNanScale);
    REPRISE_REQUIRE(nan == scales.end(), name, ": wanted finite scales but its .scale is NaN at element ",
                    nan - scales.begin());
    read_scaled(weight, scales, scale->shape[1], format, out, bad);
  }
  REPRISE_REQUIRE(!bad.any(), name, ": wanted finite values but element ", bad.place(), " is ",
                  static_cast<float>(out[bad.place()]), " in ", std::is_same_v<Out, float> ? "float32" : "bfloat16");
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
                    weight.dtype_name);
    return WeightFormat::kPlain;
  }
  REPRISE_REQUIRE(scale != nullptr, name, ": wanted a .scale beside a weight of dtype ", weight.dtype_name,
                  " but there is none");
  REPRISE_REQUIRE(weight.shape.size() == 2, name, ": wanted a matrix for dtype ", weight.dtype_name, " but got shape ",
                  shape_text(weight.shape));
  REPRISE_REQUIRE(scale->dtype == StoredDtype::kF8E8M0, name, ": wanted its .scale in F8_E8M0 but got ",
                  scale->dtype_name);
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
                const at::Tensor& destination, const std::string& name) {
  const auto shape = unpacked_shape(weight);
  const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  REPRISE_ENSURE(destination.is_contiguous() && destination.numel() == count, "destination of ", name);
  if (destination.scalar_type() == at::kFloat) {
    dequantize_as(weight, scale, format, destination.mutable_data_ptr<float>(), name);
  } else {
    REPRISE_ENSURE(destination.scalar_type() == at::kBFloat16, "destination of ", name);
    dequantize_as(weight, scale, format, destination.mutable_data_ptr<c10::BFloat16>(), name);
  }
}

}  // namespace reprise
