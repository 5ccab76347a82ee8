// Packing: the tensors of a bucket as the bytes of one message.
#ifndef GPIPE_INTERNAL_REPLICAS_PACKING_H_
#define GPIPE_INTERNAL_REPLICAS_PACKING_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "gpipe/internal/replicas/shards.h"

namespace gpipe::internal {

// Where the tensors of a bucket are in its message: first a byte for each tensor that says whether
// it is defined, then their values in the order of the bucket, each aligned as LibTorch aligns
// memory. A message is equally long whether its tensors are defined or not.
//
// A message may also be on the device of the parameters. Then the first bytes mean nothing, because
// the host would have to wait for them.
class Packing {
 public:
  // `parameters`: the parameters of the model. A tensor has its parameter's shape and type.
  Packing(const std::vector<at::Tensor>& parameters, const Bucket& bucket);

  int64_t bytes() const { return bytes_; }
  // The message of these tensors, [parameter of the model]. Tensors may be undefined. `device`: the
  // CPU, or the parameters' device; then no thread waits for that device.
  at::Tensor pack(const std::vector<at::Tensor>& tensors, c10::Device device = c10::kCPU) const;
  // Views of the parts of a message on the CPU: [place in the bucket]. For a parameter on an
  // accelerator, the view is a copy on that accelerator.
  std::vector<at::Tensor> unpack(const at::Tensor& message) const;
  // Views of the parts of a message on the parameters' device. `is_defined`: [parameter of the
  // model], whether the message has a value.
  std::vector<at::Tensor> unpack(const at::Tensor& message,
                                 const std::vector<bool>& is_defined) const;

 private:
  at::Tensor value(const at::Tensor& message, size_t place) const;

  const std::vector<at::Tensor>& parameters_;
  const Bucket& bucket_;
  std::vector<int64_t> offsets_;  // [place in the bucket]
  int64_t bytes_ = 0;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_REPLICAS_PACKING_H_
