#include "experiments/libtorch_versions/recorder.h"

#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <vector>

#include "interception/interception.h"

namespace gpipe::experiments {
namespace {

using c10::DispatchKey;
using c10::IValue;

// The recorder of this thread; null: the thread does not record.
thread_local Recorder* current = nullptr;

c10::ArrayRef<IValue> last(const torch::jit::Stack& stack, size_t count) {
  return c10::ArrayRef<IValue>(stack).slice(stack.size() - count);
}

void note_and_hand_on(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                      torch::jit::Stack* stack) {
  keys = internal::after_interception(keys, internal::kFactoryKey);
  std::optional<Call> call;
  if (current != nullptr) {
    call = current->begin(op, last(*stack, op.schema().arguments().size()));
  }
  // No guard excludes the dispatch key, so the operators that the kernel calls are recorded, too.
  op.redispatchBoxed(keys, stack);
  if (call) current->end(*std::move(call), last(*stack, op.schema().returns().size()));
}

DispatchKey intercepted() {
  static const internal::FallbackInterceptor interceptor(
      internal::kFactoryKey, [](torch::Library& all) {
        all.fallback(torch::CppFunction::makeFromBoxedFunction<&note_and_hand_on>());
      });
  return internal::kFactoryKey;
}

// Whether the operator itself computes, instead of only calling others.
bool computes(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  const std::array<const char*, 5> unwritten = {"aten::empty", "aten::new_empty", "aten::_empty",
                                                "aten::resize", "aten::set_"};
  if (name.rfind("aten::", 0) != 0 ||
      std::any_of(unwritten.begin(), unwritten.end(),
                  [&](const char* begin) { return name.rfind(begin, 0) == 0; })) {
    return false;
  }
  for (const c10::Argument& result : op.schema().returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return false;  // a view
  }
  // Under autocast an operator comes here twice: first with the caller's types, then with the types
  // in which it computes. Only the second call counts.
  if (op.hasKernelForDispatchKey(DispatchKey::AutocastCPU) &&
      !c10::impl::tls_is_dispatch_key_excluded(DispatchKey::AutocastCPU)) {
    return false;
  }
  return op.hasKernelForDispatchKey(DispatchKey::CPU) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
}

std::string name_of(c10::ScalarType type) {
  switch (type) {
    case c10::kFloat:
      return "float32";
    case c10::kDouble:
      return "float64";
    case c10::kBFloat16:
      return "bfloat16";
    default:
      return c10::toString(type);
  }
}

// The type of the first floating-point tensor in the values; empty: there is none.
std::string floating_type(c10::ArrayRef<IValue> values) {
  for (const IValue& value : values) {
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().is_floating_point()) {
      return name_of(value.toTensor().scalar_type());
    }
    std::string inside;
    if (value.isTuple()) inside = floating_type(value.toTupleRef().elements());
    if (value.isTensorList()) inside = floating_type(value.toListRef());
    if (!inside.empty()) return inside;
  }
  return "";
}

bool has_tensor(c10::ArrayRef<IValue> values) {
  return std::any_of(values.begin(), values.end(), [](const IValue& value) {
    return value.isTuple()        ? has_tensor(value.toTupleRef().elements())
           : value.isTensorList() ? has_tensor(value.toListRef())
                                  : value.isTensor() && value.toTensor().defined();
  });
}

// Writes the value to `out`, except for the contents of tensors.
void describe(const IValue& value, std::ostream& out) {
  if (value.isTensor() && value.toTensor().defined()) {
    const at::Tensor& tensor = value.toTensor();
    out << tensor.scalar_type() << tensor.sizes() << tensor.strides();
  } else if (value.isList()) {
    out << '[';
    for (const IValue& part : value.toListRef()) describe(part, out);
    out << ']';
  } else if (!value.isTensor() && !value.isGenerator()) {
    out << value;
  }
  out << ';';
}

}  // namespace

Recorder::Scope::Scope(Recorder& recorder, std::string source) : guard_(intercepted()) {
  recorder.source_ = std::move(source);
  current = &recorder;
}

Recorder::Scope::~Scope() { current = nullptr; }

std::optional<Call> Recorder::begin(const c10::OperatorHandle& op,
                                    c10::ArrayRef<IValue> arguments) {
  if (!computes(op)) return std::nullopt;
  const c10::OperatorName& name = op.operator_name();
  const std::string full = name.name + (name.overload_name.empty() ? "" : "." + name.overload_name);
  if (!can_copy(arguments)) {
    left_out_.insert(full);
    return std::nullopt;
  }
  std::ostringstream text;
  text << full << ';';
  for (const IValue& value : arguments) describe(value, text);
  if (!seen_.insert(text.str()).second) return std::nullopt;
  Call call{full, "", source_, {}, own_copies(arguments)};
  for (const c10::Argument& argument : op.schema().arguments()) {
    call.names.push_back(argument.name());
  }
  return call;
}

void Recorder::end(Call call, c10::ArrayRef<IValue> results) {
  if (!has_tensor(results)) return;
  call.type = floating_type(call.arguments);
  if (call.type.empty()) call.type = floating_type(results);
  if (call.type.empty()) call.type = "other";
  if (++counts_[{call.op, call.type, call.source}] > most_) return;
  recording_.calls.push_back(std::move(call));
}

}  // namespace gpipe::experiments
