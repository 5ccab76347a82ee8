// recorded_inputs: what an observed operator was called with.
#ifndef INTERCEPTION_RECORDED_INPUTS_H_
#define INTERCEPTION_RECORDED_INPUTS_H_

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

namespace at {
struct RecordFunction;
}  // namespace at

namespace gpipe::internal {

// RecordFunction::inputs(), in every kind of build: without NDEBUG, LibTorch's header gives the
// class a member that the released library, built with it, does not have, and inputs() reads it.
// Call it in a start callback.
c10::ArrayRef<const c10::IValue> recorded_inputs(const at::RecordFunction& call);

}  // namespace gpipe::internal

#endif  // INTERCEPTION_RECORDED_INPUTS_H_
