#include "gpipe/internal/replicas/packing.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

namespace gpipe::internal {
namespace {

constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

Packing::Packing(const std::vector<at::Tensor>& parameters, const Bucket& bucket)
    : parameters_(parameters), bucket_(bucket) {
  bytes_ = aligned(static_cast<int64_t>(bucket.size()));
  for (const size_t parameter : bucket) {
    offsets_.push_back(bytes_);
    bytes_ += aligned(static_cast<int64_t>(parameters[parameter].nbytes()));
  }
}

at::Tensor Packing::value(const at::Tensor& message, size_t place) const {
  const at::Tensor& like = parameters_[bucket_[place]];
  return message.narrow(0, offsets_[place], static_cast<int64_t>(like.nbytes()))
      .view(like.scalar_type())
      .view(like.sizes());
}

at::Tensor Packing::pack(const std::vector<at::Tensor>& tensors, c10::Device device) const {
  const c10::NoGradGuard no_grad;
  const c10::TensorOptions options = c10::TensorOptions(c10::kByte).device(device);
  at::Tensor message =
      device.is_cpu() ? at::zeros({bytes_}, options) : at::empty({bytes_}, options);
  for (size_t place = 0; place < bucket_.size(); ++place) {
    const at::Tensor& tensor = tensors[bucket_[place]];
    if (!tensor.defined()) continue;
    if (device.is_cpu()) message.mutable_data_ptr<uint8_t>()[place] = 1;
    value(message, place).copy_(tensor);
  }
  return message;
}

std::vector<at::Tensor> Packing::unpack(const at::Tensor& message) const {
  const auto* const is_there = message.const_data_ptr<uint8_t>();
  std::vector<at::Tensor> tensors(bucket_.size());
  for (size_t place = 0; place < bucket_.size(); ++place) {
    if (is_there[place] == 0) continue;
    tensors[place] = value(message, place).to(parameters_[bucket_[place]].device());
  }
  return tensors;
}

std::vector<at::Tensor> Packing::unpack(const at::Tensor& message,
                                        const std::vector<bool>& is_defined) const {
  std::vector<at::Tensor> tensors(bucket_.size());
  for (size_t place = 0; place < bucket_.size(); ++place) {
    if (is_defined[bucket_[place]]) tensors[place] = value(message, place);
  }
  return tensors;
}

}  // namespace gpipe::internal
