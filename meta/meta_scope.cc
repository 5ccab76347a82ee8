#include "meta/meta_scope.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "interception/interception.h"

namespace gpipe {
namespace {

using internal::after_interception;
using internal::FallbackInterceptor;
using internal::kFactoryKey;

// The position of the argument `device`, if the caller did not give it and no other argument
// determines it.
std::optional<size_t> open_device(const std::vector<c10::Argument>& schema,
                                  c10::ArrayRef<c10::IValue> values) {
  std::optional<size_t> found;
  for (size_t i = 0; i < schema.size(); ++i) {
    // If a tensor is given, the result is made on that tensor's device.
    if (values[i].isTensor() || values[i].isTensorList()) return std::nullopt;
    if (schema[i].name() == "device" && values[i].isNone()) found = i;
  }
  return found;
}

// Whether the operator can make its result on meta. An operator without any of these kernels has
// LibTorch's fallback for meta tensors, which throws.
bool has_meta_form(const c10::OperatorHandle& op) {
  for (const c10::DispatchKey key :
       {c10::DispatchKey::Meta, c10::DispatchKey::CompositeExplicitAutograd,
        c10::DispatchKey::CompositeExplicitAutogradNonFunctional,
        c10::DispatchKey::CompositeImplicitAutograd}) {
    if (op.hasKernelForDispatchKey(key)) return true;
  }
  return false;
}

// The operator randperm, which LibTorch has on meta in Python only.
at::Tensor meta_randperm(const std::vector<c10::Argument>& schema,
                         c10::ArrayRef<c10::IValue> values) {
  at::ScalarType dtype = at::kLong;
  for (size_t i = 0; i < schema.size(); ++i) {
    if (schema[i].name() == "dtype" && !values[i].isNone()) dtype = values[i].toScalarType();
  }
  return at::empty({values[0].toInt()}, at::TensorOptions(dtype).device(at::kMeta));
}

// The kernel of all operators under kFactoryKey. The operators that it calls run as if there were
// no scope, because a kernel may need memory.
void on_meta(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(kFactoryKey);
  const std::vector<c10::Argument>& schema = op.schema().arguments();
  const size_t base = stack->size() - schema.size();
  const c10::ArrayRef<c10::IValue> values(stack->data() + base, schema.size());
  const std::optional<size_t> device = open_device(schema, values);
  if (device && op.operator_name().name == "aten::randperm") {
    at::Tensor permutation = meta_randperm(schema, values);
    stack->resize(base);
    stack->emplace_back(std::move(permutation));
    return;
  }
  if (device && has_meta_form(op)) (*stack)[base + *device] = c10::Device(c10::kMeta);
  op.redispatchBoxed(after_interception(keys, kFactoryKey), stack);
}

c10::DispatchKey intercepted() {
  static const FallbackInterceptor interceptor(kFactoryKey, [](torch::Library& all) {
    all.fallback(torch::CppFunction::makeFromBoxedFunction<&on_meta>());
  });
  return kFactoryKey;
}

}  // namespace

MetaScope::MetaScope() : guard_(intercepted()) {}

}  // namespace gpipe
