#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace reprise {

// The number formats of a checkpoint, told apart by dtype and by the shape of the scale:
//   kPlain      F32, BF16, F16 or F64, no scale.
//   kFp8Blocks  E4M3 [N, K], E8M0 scale per 32x32 block: [ceil(N/32), ceil(K/32)].
//   kFp8Rows    E4M3 [N, K], E8M0 scale per row and 32 columns: [N, ceil(K/32)].
//   kFp4Rows    E2M1 [N, K], two per byte (I8 [N, K/2], even column in the low nibble), E8M0 scale per row and 32
//   columns.
enum class WeightFormat { kPlain, kFp8Blocks, kFp8Rows, kFp4Rows };

// The shape of the weight once unpacked.
std::vector<int64_t> unpacked_shape(const StoredTensor& weight);

// Whether a weight of this dtype is one of a (weight, scale) pair.
bool needs_scale(StoredDtype dtype);

// How (weight, scale) is stored; `scale` is null when there is none. Throws std::invalid_argument (`name` begins the
// message) when it is none of the formats.
WeightFormat weight_format(const StoredTensor& weight, const StoredTensor* scale, const std::string& name);

// Reads a stored weight from its file and writes its values to `destination` (contiguous, float32 or bfloat16, as many
// elements), rounding to nearest even; chunk by chunk, so that little memory is needed beside it. Throws
// std::invalid_argument when a scale is NaN or a value is not finite, std::runtime_error when the file cannot be read.
void dequantize(const StoredTensor& weight, const StoredTensor* scale, WeightFormat format,
                const at::Tensor& destination, const std::string& name);

}  // namespace reprise
