#include "memory/cpu_storage.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <sys/mman.h>

#include <memory>
#include <utility>

namespace reprise {
namespace {

// Below this, filling zeros costs less than mapping and faulting pages.
constexpr size_t kMinLazyBytes = size_t{1} << 20;
// Below this, a call costs as much as the faults it saves.
constexpr size_t kMinPopulateBytes = size_t{16} << 10;
constexpr uintptr_t kPageBytes = 4096;
constexpr uintptr_t kHugePageBytes = uintptr_t{2} << 20;

uintptr_t round_down(uintptr_t address, uintptr_t unit) { return address / unit * unit; }

uintptr_t round_up(uintptr_t address, uintptr_t unit) { return round_down(address + unit - 1, unit); }

// Advice only: where the system knows none of it, pages come by faults.
void advise(uintptr_t begin, uintptr_t end, int advice) {
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

size_t num_bytes(at::IntArrayRef sizes, const at::TensorOptions& options) {
  size_t count = options.dtype().itemsize();
  for (const int64_t size : sizes) count *= static_cast<size_t>(size);
  return count;
}

// Null when the system has no room.
at::DataPtr map_zero_pages(size_t bytes) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return {};
  const auto unmap = [bytes](void* mapped) { munmap(mapped, bytes); };
  std::unique_ptr<void, decltype(unmap)> guard(address, unmap);
  at::DataPtr memory = c10::InefficientStdFunctionContext::makeDataPtr(address, unmap, at::kCPU);
  static_cast<void>(guard.release());
  return memory;
}

}  // namespace

at::Tensor tensor_over(at::DataPtr memory, at::IntArrayRef sizes, const at::TensorOptions& options) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                       c10::SymInt(static_cast<int64_t>(num_bytes(sizes, options))),
                                                       std::move(memory), c10::GetCPUAllocator(), /*resizable=*/true);
  return at::empty({0}, options).set_(c10::Storage(std::move(storage)), 0, sizes);
}

at::Tensor lazy_zeros(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const size_t bytes = num_bytes(sizes, options);
  if (options.device().is_cpu() && bytes >= kMinLazyBytes) {
    at::DataPtr memory = map_zero_pages(bytes);
    if (memory) return tensor_over(std::move(memory), sizes, options);
  }
  return at::zeros(sizes, options);
}

void advise_huge_pages([[maybe_unused]] void* begin, [[maybe_unused]] size_t bytes) {
#ifdef MADV_HUGEPAGE
  const auto first = reinterpret_cast<uintptr_t>(begin);
  advise(round_up(first, kHugePageBytes), round_down(first + bytes, kHugePageBytes), MADV_HUGEPAGE);
#endif
}

void populate_pages([[maybe_unused]] void* begin, [[maybe_unused]] size_t bytes) {
#ifdef MADV_POPULATE_WRITE
  if (bytes < kMinPopulateBytes) return;
  advise_huge_pages(begin, bytes);
  const auto first = reinterpret_cast<uintptr_t>(begin);
  advise(round_down(first, kPageBytes), round_up(first + bytes, kPageBytes), MADV_POPULATE_WRITE);
#endif
}

}  // namespace reprise
