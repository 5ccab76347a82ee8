// Boundary: the ends of a stage, where tensors arrive and leave.
//
// There is a rule for tensors that arrive (arriving.h), for tensors that stay while the layers run
// (staying.h), and for tensors that leave (leaving.h). Each rule asks who owns a tensor's memory,
// which code may change it, and whether the same tensor comes twice. docs/design/pipeline.md says
// why the rules are as they are.
#ifndef GPIPE_INTERNAL_BOUNDARY_BOUNDARY_H_
#define GPIPE_INTERNAL_BOUNDARY_BOUNDARY_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "gpipe/internal/boundary/ports.h"

namespace gpipe::internal {

// A value type.
struct Boundary {
  int64_t stage = 0;
  Ports ports;
  // Whether tensors may be copied on their way, to another device or process. Then a change in
  // place on one side is not seen on the other.
  bool copies = false;
};

// Whether a gradient could flow through the tensor. `record`: whether gradients will be asked for.
inline bool may_have_gradient(bool record, const at::Tensor& tensor) {
  return record && tensor.defined() && (tensor.is_floating_point() || tensor.is_complex());
}

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BOUNDARY_BOUNDARY_H_
