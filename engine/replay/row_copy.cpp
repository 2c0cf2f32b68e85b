#include "replay/row_copy.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "memory/cpu_storage.h"
#include "memory/stream_copy.h"

namespace reprise {
namespace {

// Bytes a thread should have to copy before a second one pays.
constexpr int64_t kGrainBytes = int64_t{8} << 20;
// Rows of more bytes leave the cache before the layers come to read them: copied past it they take half the time
// (52 MB of a [8192, 4, 5120] bfloat16 residual: 1.9x on one thread, 1.5x on two).
constexpr int64_t kStreamBytes = int64_t{16} << 20;

int64_t row_bytes(const at::Tensor& tensor) {
  int64_t bytes = static_cast<int64_t>(tensor.element_size());
  for (int64_t d = 1; d < tensor.dim(); ++d) bytes *= tensor.size(d);
  return bytes;
}

int64_t row_stride_bytes(const at::Tensor& tensor) {
  return tensor.stride(0) * static_cast<int64_t>(tensor.element_size());
}

// Calls copy(batch row, kept row, count) for every stretch of consecutive rows; in order of kept rows unless
// `parallel`.
template <typename Copy>
void for_each_stretch(const RowRuns& rows, int64_t bytes_per_row, bool parallel, const Copy& copy) {
  const auto copy_kept = [&](int64_t begin, int64_t end) {
    auto run = std::upper_bound(rows.runs().begin(), rows.runs().end(), begin,
                                [](int64_t kept, const RowRun& r) { return kept < r.to; });
    for (--run; run != rows.runs().end() && run->to < end; ++run) {
      const int64_t first = std::max(begin, run->to);
      const int64_t last = std::min(end, run->to + run->count);
      copy(run->from + first - run->to, first, last - first);
    }
  };
  if (rows.num_rows() == 0 || bytes_per_row == 0) return;
  if (parallel) {
    at::parallel_for(0, rows.num_rows(), std::max<int64_t>(1, kGrainBytes / bytes_per_row), copy_kept);
  } else {
    copy_kept(0, rows.num_rows());
  }
}

}  // namespace

bool copies_as_bytes(const at::Tensor& tensor) {
  if (at::GradMode::is_enabled() && tensor.requires_grad()) return false;
  if (!tensor.device().is_cpu() || tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_conj() ||
      tensor.is_neg() || tensor._is_zerotensor() || tensor.unsafeGetTensorImpl()->is_python_dispatch()) {
    return false;
  }
  int64_t expected = 1;
  for (int64_t d = tensor.dim() - 1; d >= 1; --d) {
    if (tensor.size(d) != 1 && tensor.stride(d) != expected) return false;
    expected *= tensor.size(d);
  }
  return true;
}

void gather_runs(const at::Tensor& batch, const RowRuns& rows, const at::Tensor& kept) {
  const int64_t bytes = row_bytes(batch);
  const int64_t stride = row_stride_bytes(batch);
  const auto* from = static_cast<const std::byte*>(batch.const_data_ptr());
  auto* to = static_cast<std::byte*>(kept.mutable_data_ptr());
  const bool streams = rows.num_rows() * bytes > kStreamBytes;
  const auto copy = [streams](std::byte* target, const std::byte* source, int64_t size) {
    if (streams) {
      stream_copy(target, source, static_cast<size_t>(size));
    } else {
      std::memcpy(target, source, static_cast<size_t>(size));
    }
  };
  for_each_stretch(rows, bytes, true, [=](int64_t batch_row, int64_t kept_row, int64_t count) {
    if (stride == bytes) {
      copy(to + kept_row * bytes, from + batch_row * bytes, count * bytes);
      return;
    }
    for (int64_t i = 0; i < count; ++i) {
      copy(to + (kept_row + i) * bytes, from + (batch_row + i) * stride, bytes);
    }
  });
}

void scatter_runs(const at::Tensor& kept, const RowRuns& rows, bool in_any_order, const at::Tensor& batch) {
  const int64_t bytes = row_bytes(batch);
  const auto* from = static_cast<const std::byte*>(kept.const_data_ptr());
  auto* to = static_cast<std::byte*>(batch.mutable_data_ptr());
  for_each_stretch(rows, bytes, in_any_order, [=](int64_t batch_row, int64_t kept_row, int64_t count) {
    populate_pages(to + batch_row * bytes, static_cast<size_t>(count * bytes));
    std::memcpy(to + batch_row * bytes, from + kept_row * bytes, static_cast<size_t>(count * bytes));
  });
}

}  // namespace reprise
