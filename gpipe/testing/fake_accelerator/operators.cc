// The operators that LibTorch calls for tensors on fake devices. It has no header: linking
// registers them.

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <optional>
#include <utility>
#include <vector>

#include "gpipe/testing/fake_accelerator/backend.h"
#include "gpipe/testing/fake_accelerator/copies.h"
#include "gpipe/testing/fake_accelerator/kernels.h"
#include "gpipe/testing/fake_accelerator/tensors.h"

namespace gpipe::testing::fake {
namespace {

using torch::jit::Stack;

constexpr c10::DispatchKeySet kKey(c10::DispatchKey::PrivateUse1);

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> type,
                 std::optional<c10::Layout> /*layout*/, std::optional<c10::Device> device,
                 std::optional<bool> /*pinned*/, std::optional<c10::MemoryFormat> format) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_generic(size, device_allocator(), kKey, c10::dtype_or_default(type),
                                   format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<c10::ScalarType> type, std::optional<c10::Layout> /*layout*/,
                         std::optional<c10::Device> device, std::optional<bool> /*pinned*/) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_strided_generic(size, stride, device_allocator(), kKey,
                                           c10::dtype_or_default(type));
}

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef size,
                          std::optional<c10::MemoryFormat> format) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor fresh = at::empty(size, self.options(), format);
  if (fresh.nbytes() > self.storage().nbytes()) {
    if (self.numel() > 0) {
      fresh.flatten().narrow(0, 0, self.numel()).copy_(self.contiguous().flatten());
    }
    self.storage().set_data_ptr(std::move(const_cast<c10::DataPtr&>(fresh.storage().data_ptr())));
    self.storage().set_nbytes(fresh.nbytes());
  }
  self.unsafeGetTensorImpl()->set_sizes_and_strides(fresh.sizes(), fresh.strides(),
                                                    self.storage_offset());
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, /*non_blocking=*/false);
}

// Replaces TensorImpl's own answer, which does not count PrivateUse1 as a device with dense
// tensors. With that answer Module::to() would refuse to give a parameter other memory.
bool may_take_over(const at::Tensor& self, const at::Tensor& from) {
  const auto known = [](const at::Tensor& tensor) { return tensor.is_cpu() || is_fake(tensor); };
  return known(self) && known(from) && self.layout() == from.layout();
}

const c10::OperatorHandle& operator_named(const char* name) {
  // The handle is never destroyed, because a stream may use it until the process ends.
  return *new c10::OperatorHandle(c10::Dispatcher::singleton().findSchemaOrThrow(name, ""));
}

// LibTorch runs convolutions of out-of-tree devices through operators that the CPU does not have,
// so these kernels call the CPU's own operators.
void convolution(const c10::OperatorHandle& op, Stack* stack) {
  static const c10::OperatorHandle& cpu = operator_named("aten::convolution");
  run_on_stream(op, stack, [](Stack& values) { cpu.callBoxed(values); });
}

void convolution_backward(const c10::OperatorHandle& op, Stack* stack) {
  static const c10::OperatorHandle& cpu = operator_named("aten::convolution_backward");
  run_on_stream(op, stack, [](Stack& values) {
    // The CPU's operator takes one more argument, the sizes of the bias.
    const at::Tensor weight = values[2].toTensor();
    const bool transposed = values[6].toBool();
    const int64_t channels =
        transposed ? weight.size(1) * values[8].toInt() : weight.size(0);  // [8]: groups
    values.insert(values.begin() + 3, c10::IValue(std::vector<int64_t>{channels}));
    cpu.callBoxed(values);
  });
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_cpu_operator>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("resize_", resize_);
  // Views are made in the same way for all devices.
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view",
               static_cast<at::Tensor (*)(const at::Tensor&, c10::IntArrayRef)>(at::native::view));
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("unfold", at::native::unfold);
  library.impl("set_.source_Tensor", at::native::set_tensor_);
  library.impl("set_.source_Storage",
               static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(at::native::set_));
  library.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  library.impl("_has_compatible_shallow_copy_type", may_take_over);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", value_of);
  // These are kernels of their own on CPUs and GPUs. LibTorch's composites for other devices would
  // take the place of the fallback, and have other last bits.
  for (const char* name : {"native_layer_norm", "native_group_norm", "addr", "addr.out"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_cpu_operator>());
  }
  library.impl("convolution_overrideable",
               torch::CppFunction::makeFromBoxedFunction<&convolution>());
  library.impl("convolution_backward_overrideable",
               torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
}

}  // namespace
}  // namespace gpipe::testing::fake
