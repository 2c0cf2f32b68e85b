#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstddef>

namespace reprise {

// A contiguous CPU tensor over memory that the caller has made; otherwise like any other tensor (also resizable).
at::Tensor tensor_over(at::DataPtr memory, at::IntArrayRef sizes, const at::TensorOptions& options);

// A zero tensor. A large one on the CPU is a fresh anonymous mapping: zero by allocation, and a page costs nothing
// until it is written.
at::Tensor lazy_zeros(at::IntArrayRef sizes, const at::TensorOptions& options);

// Says that a range of lazy zeros is about to be written: its pages come in one call, large ones where they fit inside,
// instead of a fault each. Changes no value; safe on any memory.
void populate_pages(void* begin, size_t bytes);

// Asks for large pages where they fit inside; for memory that is to be used again and again.
void advise_huge_pages(void* begin, size_t bytes);

}  // namespace reprise
