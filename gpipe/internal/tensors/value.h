// Value: a list of tensors. It converts to and from the types that LibTorch's type-erased layers
// take and return.
#ifndef GPIPE_INTERNAL_TENSORS_VALUE_H_
#define GPIPE_INTERNAL_TENSORS_VALUE_H_

#include <torch/nn/modules/container/any.h>

#include <optional>
#include <string>
#include <typeinfo>
#include <vector>

#include "gpipe/internal/tensors/packet.h"

namespace gpipe::internal {

struct Value {
  ValueKind kind = ValueKind::kTensor;
  std::vector<at::Tensor> tensors;
};

// The name of the C++ type: "Tensor", "std::vector<Tensor>", "std::tuple<Tensor, Tensor>" ...
const char* to_text(ValueKind kind);

// The value as the C++ type that `value.kind` names.
torch::nn::AnyValue to_any(Value value);

// Throws c10::TypeError, which names the type, for a type that cannot travel between partitions.
Value from_any(torch::nn::AnyValue value);

// The tensors in the value; none if its type cannot travel between partitions.
std::vector<const at::Tensor*> tensors_in(torch::nn::AnyValue& value);

// The type that `layer`'s forward takes, found without running it; nullopt if it is not a
// ValueKind.
std::optional<ValueKind> argument_kind(torch::nn::AnyModule& layer);

// Throws c10::TypeError, with `name` (e.g. "layer 2 ('bilinear')"), for a layer that cannot be in
// any pipeline because it does not take exactly one argument. Also throws for a layer that is the
// first of partition `begins` (-1: it is not the first of any) and takes a type that cannot travel
// between partitions. Layers within a partition may pass each other any type.
void check_argument(torch::nn::AnyModule& layer, const std::string& name, int64_t begins);

// A type as a person would write it, cut after about 80 characters.
std::string readable_type(const std::type_info& type);
// The type of a layer, or the name that it gives itself, as layers of another language do.
std::string readable_type(const torch::nn::AnyModule& layer);

// `tensors` as a value of `kind`. Throws c10::ValueError if the number of tensors does not fit.
Value shape_as(ValueKind kind, std::vector<at::Tensor> tensors, const std::string& taker);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_TENSORS_VALUE_H_
