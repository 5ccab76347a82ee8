// LibTorch is built with NDEBUG. Without NDEBUG here, this unit's RecordFunction would look for a
// member that LibTorch's does not have, and would find its inputs invalid.
#ifndef NDEBUG
#define NDEBUG
#endif

#include "gpipe/internal/graphs/capture_watch.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <memory>

#include "gpipe/internal/tensors/alias.h"
#include "interception/interception.h"
#include "interception/recorded_inputs.h"

namespace gpipe::internal {
namespace {

thread_local CaptureWatch* current_watch = nullptr;

void wait_not(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  TORCH_CHECK(!CaptureWatch::is_recording(), op.operator_name().name, " waits for the device");
  op.redispatchBoxed(after_interception(keys), stack);
}

at::Tensor& copy(c10::DispatchKeySet keys, at::Tensor& to, const at::Tensor& from,
                 bool non_blocking) {
  TORCH_CHECK(!CaptureWatch::is_recording() || to.device() == from.device(),
              "aten::copy_ goes from ", from.device(), " to ", to.device());
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("aten::copy_", "")
                             .typed<at::Tensor&(at::Tensor&, const at::Tensor&, bool)>();
  return op.redispatch(after_interception(keys), to, from, non_blocking);
}

void intercept() {
  static const Interceptor interceptor([](torch::Library& aten) {
    // Operators whose CUDA kernels wait, because their results are values or are sized by values.
    for (const char* name :
         {"_local_scalar_dense", "nonzero", "masked_select", "_unique", "_unique2", "unique_dim",
          "unique_consecutive", "repeat_interleave.Tensor", "bincount", "equal"}) {
      aten.impl(name, torch::CppFunction::makeFromBoxedFunction<&wait_not>());
    }
    aten.impl("copy_", torch::CppFunction(copy));
  });
}

}  // namespace

// LibTorch swallows exceptions of these callbacks, so the callbacks only note what check() throws.
struct CaptureWatch::Observer {
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
    CaptureWatch* const watch = current_watch;
    if (watch == nullptr || !call.operator_name()) return nullptr;
    if (watch->depth_++ > 0 || !watch->found_.empty()) return nullptr;
    for (const c10::IValue& value : recorded_inputs(call)) {
      for_each_tensor_in(value, [&](const at::Tensor& tensor) {
        if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return;
        const c10::StorageImpl* storage = storage_of(tensor);
        if (storage != nullptr && watch->known_.contains(storage) &&
            tensor.device() == watch->device_) {
          return;
        }
        watch->found_ = c10::str(
            call.name(), " takes a tensor ",
            tensor.device() == watch->device_
                ? std::string("that is neither an input, parameter or buffer of the stage nor "
                              "made in it (register it with register_buffer)")
                : c10::str("on ", tensor.device()));
      });
    }
    return nullptr;
  }

  static void end(const at::RecordFunction& call, at::ObserverContext* /*context*/) {
    CaptureWatch* const watch = current_watch;
    if (watch == nullptr || !call.operator_name() || watch->depth_ == 0) return;
    if (--watch->depth_ > 0) return;
    for (const c10::IValue& value : call.outputs()) {
      for_each_tensor_in(value, [&](const at::Tensor& tensor) {
        if (storage_of(tensor) != nullptr) watch->known_.insert(storage_of(tensor));
      });
    }
  }
};

CaptureWatch::CaptureWatch() : former_(current_watch) {
  intercept();
  current_watch = this;
}

CaptureWatch::CaptureWatch(c10::Device device, const std::vector<at::Tensor>& known)
    : CaptureWatch() {
  device_ = device;
  for (const at::Tensor& tensor : known) {
    if (storage_of(tensor) != nullptr) known_.insert(storage_of(tensor));
  }
  callback_ =
      at::addThreadLocalCallback(at::RecordFunctionCallback(&Observer::begin, &Observer::end)
                                     .needsInputs(true)
                                     .needsOutputs(true)
                                     .scopes({at::RecordScope::FUNCTION}));
}

CaptureWatch::~CaptureWatch() {
  if (callback_ != at::INVALID_CALLBACK_HANDLE) at::removeCallback(callback_);
  current_watch = former_;
}

void CaptureWatch::check() const { TORCH_CHECK(found_.empty(), found_); }

bool CaptureWatch::is_recording() { return current_watch != nullptr; }

}  // namespace gpipe::internal
