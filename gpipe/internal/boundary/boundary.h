// Boundary: the ends of a stage, where tensors arrive and leave.
//
// There is one rule for each direction: for what arrives (arriving.h), for what stays while the
// layers run (staying.h), and for what leaves (leaving.h). All of them ask whose memory it is,
// which code may change it, and whether it is the same tensor twice. docs/design/pipeline.md says
// why they are as they are.
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
