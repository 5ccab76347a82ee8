#include "gpipe/internal/replicas/packing.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>

namespace gpipe::internal {
namespace {

constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

Packing::Packing(const std::vector<at::Tensor>& parameters, const Bucket& bucket)
    : parameters_(parameters), bucket_(bucket) {
  for (const size_t parameter : bucket) {
    offsets_.push_back(bytes_);
    bytes_ += aligned(static_cast<int64_t>(parameters[parameter].nbytes()));
  }
  bytes_ = std::max(bytes_, kAlignment);  // empty parameters alone would make an empty message
}

at::Tensor Packing::value(const at::Tensor& message, size_t place) const {
  const at::Tensor& like = parameters_[bucket_[place]];
  return message.narrow(0, offsets_[place], static_cast<int64_t>(like.nbytes()))
      .view(like.scalar_type())
      .view(like.sizes());
}

at::Tensor Packing::pack(const std::vector<at::Tensor>& tensors, c10::Device device) const {
  const c10::NoGradGuard no_grad;
  at::Tensor message = at::empty({bytes_}, c10::TensorOptions(c10::kByte).device(device));
  for (size_t place = 0; place < bucket_.size(); ++place) {
    const at::Tensor& tensor = tensors[bucket_[place]];
    if (tensor.defined()) value(message, place).copy_(tensor);
  }
  return message;
}

std::vector<at::Tensor> Packing::unpack(const at::Tensor& message,
                                        const std::vector<bool>& is_defined) const {
  std::vector<at::Tensor> tensors(bucket_.size());
  for (size_t place = 0; place < bucket_.size(); ++place) {
    const size_t parameter = bucket_[place];
    if (!is_defined[parameter]) continue;
    tensors[place] = value(message, place).to(parameters_[parameter].device());
  }
  return tensors;
}

c10::Device device_of(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.device() != tensors.front().device()) return c10::kCPU;
  }
  return tensors.empty() ? c10::kCPU : tensors.front().device();
}

}  // namespace gpipe::internal
