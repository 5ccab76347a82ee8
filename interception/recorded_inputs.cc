// NDEBUG is defined as in LibTorch's build. The definition must come before all headers, so the
// target has no precompiled header.
#ifndef NDEBUG
#define NDEBUG
#endif

#include "interception/recorded_inputs.h"

#include <ATen/record_function.h>

namespace gpipe::internal {

c10::ArrayRef<const c10::IValue> recorded_inputs(const at::RecordFunction& call) {
  return call.inputs();
}

}  // namespace gpipe::internal
