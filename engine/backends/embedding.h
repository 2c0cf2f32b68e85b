#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace reprise {

// Each token's embedding [vocab, H] repeated in every stream: [T, streams, H]. Ids int64 [T].
at::Tensor embed_streams(const at::Tensor& table, const at::Tensor& ids, int64_t streams);

// e[t] = the table rows `rows[t, :]` concatenated: table [n, d], rows int64 [T, m] -> [T, m * d].
at::Tensor lookup_rows(const at::Tensor& table, const at::Tensor& rows);

}  // namespace reprise
