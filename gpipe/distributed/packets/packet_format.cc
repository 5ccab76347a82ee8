#include "gpipe/distributed/packets/packet_format.h"

#include <ATen/Functions.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>

#include <cstddef>
#include <utility>

#include "gpipe/internal/tensors/alias.h"
#include "gpipe/runtime/bytes.h"

namespace gpipe::distributed {

bool can_travel(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Byte:
    case c10::ScalarType::Char:
    case c10::ScalarType::Short:
    case c10::ScalarType::Int:
    case c10::ScalarType::Long:
    case c10::ScalarType::UInt16:
    case c10::ScalarType::UInt32:
    case c10::ScalarType::UInt64:
    case c10::ScalarType::Half:
    case c10::ScalarType::Float:
    case c10::ScalarType::Double:
    case c10::ScalarType::BFloat16:
    case c10::ScalarType::ComplexHalf:
    case c10::ScalarType::ComplexFloat:
    case c10::ScalarType::ComplexDouble:
    case c10::ScalarType::Bool:
    case c10::ScalarType::Float8_e5m2:
    case c10::ScalarType::Float8_e4m3fn:
    case c10::ScalarType::Float8_e5m2fnuz:
    case c10::ScalarType::Float8_e4m3fnuz:
      return true;
    default:
      return false;
  }
}

int64_t line_of(c10::Device device) { return static_cast<int64_t>(internal::line_bytes(device)); }

int64_t next_place(int64_t offset, int64_t shift) {
  const int64_t line = line_of(c10::kCPU);
  return offset + ((shift - offset) % line + line) % line;
}

c10::Storage storage_over(const at::Tensor& owner, char* data, int64_t bytes) {
  auto* context = new at::Tensor(owner);
  c10::DataPtr pointer(
      data, context, [](void* kept) { delete static_cast<at::Tensor*>(kept); },
      c10::Device(c10::kCPU));
  return c10::Storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes),
                      std::move(pointer), c10::GetCPUAllocator(), /*resizable=*/true);
}

at::Tensor tensor_over(c10::Storage storage, c10::ScalarType type, int64_t offset_bytes,
                       c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  const c10::DispatchKey key = c10::computeDispatchKey(type, c10::kStrided, storage.device());
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(key), c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
      sizes, strides, offset_bytes / static_cast<int64_t>(c10::elementSize(type)));
  return tensor;
}

// This function must not be inlined, because gcc would assume that LibTorch's branch for tensors
// without memory is taken.
__attribute__((noinline)) char* data_of(const at::Tensor& bytes) {
  return static_cast<char*>(bytes.mutable_data_ptr());
}

void damaged(const std::string& what) {
  throw internal::DamagedMessage("a packet of tensors is damaged: " + what);
}

}  // namespace gpipe::distributed
