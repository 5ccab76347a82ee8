#include "meta/meta_autocast.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <atomic>
#include <utility>
#include <vector>

#include "interception/interception.h"

namespace gpipe {
namespace {

using internal::after_interception;
using internal::kInterceptionKey;
using internal::kMetaAutocastKey;

std::atomic<c10::DeviceType> type_of_scope{c10::kCPU};

// A tensor that stands for a meta tensor while LibTorch's autocast runs: it claims to be on a
// device of the type that this autocast is for. Every operator on a stand-in comes back to
// run_behind(), which runs it on the meta tensor.
class StandIn final : public c10::TensorImpl {
 public:
  StandIn(at::Tensor tensor, c10::Device device)
      : c10::TensorImpl(c10::DispatchKeySet(kMetaAutocastKey), tensor.dtype(), device),
        tensor_(std::move(tensor)) {
    set_sizes_contiguous(tensor_.sizes());
    set_storage_access_should_throw();
  }
  const at::Tensor& tensor() const { return tensor_; }

 private:
  at::Tensor tensor_;
};

bool is_stand_in(const at::Tensor& tensor) {
  return tensor.defined() && tensor.key_set().has(kMetaAutocastKey);
}

// Whether `holds` is true for any tensor in `value`.
template <typename Holds>
bool any_tensor(const c10::IValue& value, const Holds& holds) {
  if (value.isTensor()) return holds(value.toTensor());
  if (!value.isList()) return false;
  for (const c10::IValue& element : value.toListRef()) {
    if (element.isTensor() && holds(element.toTensor())) return true;
  }
  return false;
}

// Replaces each tensor in `value` by change(tensor). A list is copied first, because its owner must
// keep the old tensors.
template <typename Change>
void change_tensors(c10::IValue& value, const Change& change) {
  if (value.isTensor()) {
    value = change(value.toTensor());
  } else if (any_tensor(value, [](const at::Tensor&) { return true; })) {
    c10::List<c10::IValue> list = value.toList().copy();
    for (size_t k = 0; k < list.size(); ++k) {
      const c10::IValue element = list.get(k);
      if (element.isTensor()) list.set(k, change(element.toTensor()));
    }
    value = std::move(list);
  }
}

// A call that this thread makes of LibTorch's autocast.
struct Call {
  c10::Device device;
  // The thread's keys before the call.
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  bool is_recorded = at::isRecordFunctionEnabled();
};
thread_local const Call* current_call = nullptr;

class CurrentCall {
 public:
  explicit CurrentCall(const Call* call) : former_(std::exchange(current_call, call)) {}
  ~CurrentCall() { current_call = former_; }
  CurrentCall(const CurrentCall&) = delete;
  CurrentCall& operator=(const CurrentCall&) = delete;

 private:
  const Call* former_;
};

at::Tensor stand_in_of(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.defined() || !tensor.is_meta()) return tensor;
  return at::detail::make_tensor<StandIn>(tensor, device);
}

at::Tensor behind(const at::Tensor& tensor) {
  if (!is_stand_in(tensor)) return tensor;
  return static_cast<const StandIn*>(tensor.unsafeGetTensorImpl())->tensor();
}

c10::DispatchKey autocast_key(c10::DeviceType type) {
  return at::autocast::get_autocast_dispatch_key_from_device_type(type);
}

using Stack = torch::jit::Stack;

template <typename Change>
void change_last(Stack* stack, size_t count, const Change& change) {
  for (size_t k = stack->size() - count; k < stack->size(); ++k) {
    change_tensors((*stack)[k], change);
  }
}

template <typename Holds>
bool any_of_last(const Stack* stack, size_t count, const Holds& holds) {
  for (size_t k = stack->size() - count; k < stack->size(); ++k) {
    if (any_tensor((*stack)[k], holds)) return true;
  }
  return false;
}

// LibTorch's autocast has called an operator on stand-ins. Runs that operator on the tensors behind
// the stand-ins, in the state that the thread had before the call of autocast, but without
// autocast.
void run_behind(const c10::OperatorHandle& op, Stack* stack) {
  TORCH_INTERNAL_ASSERT(current_call != nullptr, "a meta tensor's stand-in has left autocast");
  const Call& call = *current_call;
  change_last(stack, op.schema().arguments().size(), behind);
  {
    const c10::impl::ForceDispatchKeyGuard keys(
        call.keys.included_, call.keys.excluded_.add(autocast_key(call.device.type())));
    const at::RecordFunctionGuard recorded(call.is_recorded);
    const CurrentCall none(nullptr);
    op.callBoxed(stack);
  }
  change_last(stack, op.schema().returns().size(),
              [&](const at::Tensor& tensor) { return stand_in_of(tensor, call.device); });
}

// Passes the operator to LibTorch's autocast, with stand-ins in place of the meta tensors.
void autocast(const c10::OperatorHandle& op, c10::DeviceType type, Stack* stack) {
  const Call call{c10::Device(type, type == c10::kCPU ? -1 : 0)};
  change_last(stack, op.schema().arguments().size(),
              [&](const at::Tensor& tensor) { return stand_in_of(tensor, call.device); });
  {
    // Code that watches operators must see only the operators that run on the meta tensors
    // themselves.
    const c10::impl::ExcludeDispatchKeyGuard pause(kInterceptionKey);
    const at::RecordFunctionGuard recorded(false);
    const CurrentCall current(&call);
    op.redispatchBoxed(c10::DispatchKeySet(autocast_key(type)), stack);
  }
  change_last(stack, op.schema().returns().size(), behind);
}

// The kernel of all operators under kMetaAutocastKey.
void on_meta(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const size_t arguments = op.schema().arguments().size();
  if (any_of_last(stack, arguments, is_stand_in)) return run_behind(op, stack);
  const c10::DeviceType type = type_of_scope;
  if (at::autocast::is_autocast_enabled(type) && op.hasKernelForDispatchKey(autocast_key(type)) &&
      any_of_last(stack, arguments,
                  [](const at::Tensor& x) { return x.defined() && x.is_meta(); })) {
    return autocast(op, type, stack);
  }
  op.redispatchBoxed(after_interception(keys, kMetaAutocastKey), stack);
}

c10::DispatchKey intercepted() {
  static const internal::FallbackInterceptor interceptor(kMetaAutocastKey, [](torch::Library& all) {
    all.fallback(torch::CppFunction::makeFromBoxedFunction<&on_meta>());
  });
  return kMetaAutocastKey;
}

}  // namespace

MetaAutocastScope::MetaAutocastScope(c10::DeviceType type)
    : guard_(intercepted()), former_(type_of_scope) {
  TORCH_CHECK_VALUE(
      type == c10::kCPU || type == c10::kCUDA, "meta tensors cannot stand for tensors on ",
      c10::DeviceTypeName(type, /*lower_case=*/true), "; give c10::kCPU or c10::kCUDA");
  type_of_scope = type;
}

MetaAutocastScope::~MetaAutocastScope() { type_of_scope = former_; }

std::optional<c10::DeviceType> MetaAutocastScope::type() {
  if (!c10::impl::tls_is_dispatch_key_included(kMetaAutocastKey)) return std::nullopt;
  return type_of_scope;
}

}  // namespace gpipe
