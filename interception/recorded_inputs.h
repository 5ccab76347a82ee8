// recorded_inputs: what an observed operator was called with.
#ifndef INTERCEPTION_RECORDED_INPUTS_H_
#define INTERCEPTION_RECORDED_INPUTS_H_

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

namespace at {
struct RecordFunction;
}  // namespace at

namespace gpipe::internal {

// RecordFunction::inputs(), in every kind of build. Without NDEBUG, LibTorch's header gives the
// class a member that inputs() reads and that the released library, built with NDEBUG, does not
// have. Call it in a start callback.
c10::ArrayRef<const c10::IValue> recorded_inputs(const at::RecordFunction& call);

}  // namespace gpipe::internal

#endif  // INTERCEPTION_RECORDED_INPUTS_H_
