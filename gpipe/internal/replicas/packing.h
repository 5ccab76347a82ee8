// Packing: the tensors of a bucket as the bytes of one message, on a device or on the host.
#ifndef GPIPE_INTERNAL_REPLICAS_PACKING_H_
#define GPIPE_INTERNAL_REPLICAS_PACKING_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "gpipe/internal/replicas/shards.h"

namespace gpipe::internal {

// Where the tensors of a bucket are in its message: their values in the order of the bucket, each
// aligned as LibTorch aligns memory. A message is equally long whether its tensors are defined or
// not. Which ones are defined is told by exchange_defined(), because the host would have to wait
// for what a message on a device says.
class Packing {
 public:
  // `parameters`: the parameters of the model. A tensor has its parameter's shape and type.
  Packing(const std::vector<at::Tensor>& parameters, const Bucket& bucket);

  int64_t bytes() const { return bytes_; }
  // The message of these tensors, [parameter of the model]. Tensors may be undefined. `device`: of
  // the message. If it is that of the tensors, no thread waits for it.
  at::Tensor pack(const std::vector<at::Tensor>& tensors, c10::Device device) const;
  // Views of the parts of a message: [place in the bucket]; a copy for a parameter on another
  // device than the message. `is_defined`: [parameter of the model], whether the message has a
  // value.
  std::vector<at::Tensor> unpack(const at::Tensor& message,
                                 const std::vector<bool>& is_defined) const;

 private:
  at::Tensor value(const at::Tensor& message, size_t place) const;

  const std::vector<at::Tensor>& parameters_;
  const Bucket& bucket_;
  std::vector<int64_t> offsets_;  // [place in the bucket]
  int64_t bytes_ = 0;
};

// The device of messages of these tensors: their own; the CPU if they are on several.
c10::Device device_of(const std::vector<at::Tensor>& tensors);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_REPLICAS_PACKING_H_
