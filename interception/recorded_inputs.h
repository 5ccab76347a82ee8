// recorded_inputs: the arguments with which an observed operator was called.
#ifndef INTERCEPTION_RECORDED_INPUTS_H_
#define INTERCEPTION_RECORDED_INPUTS_H_

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

namespace at {
struct RecordFunction;
}  // namespace at

namespace gpipe::internal {

// Returns RecordFunction::inputs(), in every kind of build. Without NDEBUG, LibTorch's header gives
// the class a member that inputs() reads, but the released library, built with NDEBUG, does not
// have it. Call this function in a start callback.
c10::ArrayRef<const c10::IValue> recorded_inputs(const at::RecordFunction& call);

// Calls `visit` with each defined tensor in an input or output of an operator. `value` may be a
// tensor, a list of tensors or of optional tensors, or a tuple.
template <typename Visit>
void for_each_tensor_in(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (tensor.defined()) visit(tensor);
    }
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) for_each_tensor_in(item, visit);
  } else if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) for_each_tensor_in(item, visit);
  }
}

}  // namespace gpipe::internal

#endif  // INTERCEPTION_RECORDED_INPUTS_H_
