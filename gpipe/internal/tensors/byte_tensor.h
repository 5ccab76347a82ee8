// new_bytes, tensor_of_bytes, bytes_in: tensors of bytes, which are the messages between processes.
#ifndef GPIPE_INTERNAL_TENSORS_BYTE_TENSOR_H_
#define GPIPE_INTERNAL_TENSORS_BYTE_TENSOR_H_

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <cstring>
#include <string_view>

namespace gpipe::internal {

// New memory, whose bytes are not set.
inline at::Tensor new_bytes(int64_t count, c10::Device device = c10::kCPU) {
  return at::empty({count}, c10::TensorOptions(c10::kByte).device(device));
}

// A copy of the bytes, on the CPU.
inline at::Tensor tensor_of_bytes(std::string_view bytes) {
  at::Tensor tensor = new_bytes(static_cast<int64_t>(bytes.size()));
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

// The bytes of a contiguous tensor on the CPU, which must outlive them.
inline std::string_view bytes_in(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_TENSORS_BYTE_TENSOR_H_
