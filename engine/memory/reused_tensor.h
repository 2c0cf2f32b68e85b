#pragma once

#include <ATen/core/Tensor.h>

namespace reprise {

// Makes `tensor` a dense CPU tensor of these sizes and arbitrary contents. Its memory serves again where it is large
// enough and nobody else refers to it; otherwise `tensor` becomes a new one, and others keep what they hold.
void reuse_tensor(at::Tensor& tensor, at::IntArrayRef sizes, at::ScalarType dtype);

}  // namespace reprise
