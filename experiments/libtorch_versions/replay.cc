#include "experiments/libtorch_versions/replay.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "command/run.h"
#include "gpipe/testing/bitwise.h"

namespace gpipe::experiments {
namespace {

using at::Tensor;
using c10::IValue;

std::optional<c10::OperatorHandle> find(const std::string& op) {
  const size_t dot = op.find('.');
  const std::string overload = dot == std::string::npos ? "" : op.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchema({op.substr(0, dot), overload});
}

Tensor tensor_of(const IValue& value) {
  if (value.isNone()) return {};
  if (value.isTensor()) return value.toTensor();
  Tensor number = c10::scalar_to_tensor(value.toScalar());
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  return number;
}

// Converts a value from the form of own_copies() to the one that the operator takes.
IValue as(const c10::TypePtr& type, const IValue& value) {
  if (type->kind() == c10::TypeKind::TensorType) return tensor_of(value);
  if (type->kind() == c10::TypeKind::OptionalType) {
    return value.isNone() ? value
                          : as(type->expectRef<c10::OptionalType>().getElementType(), value);
  }
  if (type->kind() != c10::TypeKind::ListType || !value.isTuple()) return value;
  const c10::TypePtr& inside = type->expectRef<c10::ListType>().getElementType();
  c10::impl::GenericList list(inside);
  for (const IValue& part : value.toTupleRef().elements()) list.push_back(as(inside, part));
  return list;
}

// The call's argument names as this version's schema has them. A name that the schema lacks counts
// as renamed if the call has no argument with the name that the schema has at this place.
std::vector<std::string> names_of(const Call& call, const c10::FunctionSchema& schema) {
  std::vector<std::string> names = call.names;
  for (size_t k = 0; k < names.size(); ++k) {
    if (schema.argumentIndexWithName(names[k])) continue;
    const bool renamed = k < schema.arguments().size() &&
                         std::find(call.names.begin(), call.names.end(),
                                   schema.arguments()[k].name()) == call.names.end();
    TORCH_CHECK(renamed, "the operator has no argument ", names[k]);
    names[k] = schema.arguments()[k].name();
  }
  return names;
}

std::vector<IValue> arguments_of(const Call& call, const c10::FunctionSchema& schema) {
  const std::vector<std::string> names = names_of(call, schema);
  const std::vector<IValue> copies = own_copies(call.arguments);
  std::vector<IValue> arguments;
  for (const c10::Argument& argument : schema.arguments()) {
    const auto found = std::find(names.begin(), names.end(), argument.name());
    if (found != names.end()) {
      arguments.push_back(as(argument.type(), copies[found - names.begin()]));
    } else {
      TORCH_CHECK(argument.default_value().has_value(), "the operator needs an argument ",
                  argument.name());
      arguments.push_back(*argument.default_value());
    }
  }
  return arguments;
}

void add_tensors(const IValue& value, std::vector<Tensor>& tensors) {
  if (value.isTensor() && value.toTensor().defined()) {
    tensors.push_back(value.toTensor().clone(at::MemoryFormat::Contiguous));
  } else if (value.isTensorList()) {
    for (const Tensor& tensor : value.toTensorVector()) add_tensors(tensor, tensors);
  } else if (value.isScalar()) {
    tensors.push_back(c10::scalar_to_tensor(value.toScalar()));
  }
}

// Fills memory that tensors of these sizes may get next with `byte`. So elements that a kernel does
// not write differ from run to run.
void soil_memory_for(const std::vector<Tensor>& tensors, int byte) {
  std::vector<at::TensorBase> soiled;
  for (const Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    soiled.push_back(at::detail::empty_cpu({bytes}, at::kByte));
    std::memset(soiled.back().mutable_data_ptr(), byte, bytes);
  }
}

void leave_out_what_differs(const Result& again, Result& result) {
  for (size_t k = 0; k < std::min(result.tensors.size(), again.tensors.size()); ++k) {
    if (!result.tensors[k].defined()) continue;
    const std::string difference = testing::bitwise_difference(result.tensors[k], again.tensors[k]);
    if (!difference.empty()) result.tensors[k].reset();
  }
}

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

}  // namespace

Result replay(const Call& call) {
  Result result;
  const std::optional<c10::OperatorHandle> op = find(call.op);
  if (!op) {
    result.failure = "there is no such operator";
    return result;
  }
  try {
    const at::AutoDispatchBelowADInplaceOrView without_autograd;
    const c10::FunctionSchema& schema = op->schema();
    const std::vector<IValue> arguments = arguments_of(call, schema);
    std::vector<IValue> stack = arguments;
    at::manual_seed(0);
    op->callBoxed(&stack);
    for (size_t k = 0; k < stack.size(); ++k) {
      if (!writes(schema.returns()[k])) add_tensors(stack[k], result.tensors);
    }
    for (size_t k = 0; k < arguments.size(); ++k) {
      if (writes(schema.arguments()[k])) add_tensors(arguments[k], result.tensors);
    }
  } catch (const std::exception& error) {
    const std::string message = command::message_of(error);
    result.failure = message.substr(0, message.find('\n'));
    result.tensors.clear();
  }
  return result;
}

Replay replay(const Recording& recording, int64_t threads) {
  at::set_num_threads(static_cast<int>(threads));
  Replay run{threads, {}};
  for (const Call& call : recording.calls) {
    Result result = replay(call);
    for (const int byte : {0xA5, 0x5A, 0}) {
      soil_memory_for(result.tensors, byte);
      leave_out_what_differs(replay(call), result);
    }
    run.results.push_back(std::move(result));
  }
  return run;
}

}  // namespace gpipe::experiments
