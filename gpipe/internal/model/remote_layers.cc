#include "gpipe/internal/model/remote_layers.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/variable.h>

#include "gpipe/internal/libtorch/versions.h"
#include "text/shown.h"

namespace gpipe::internal {
namespace {

// Gives the tensor new memory on the device. Tensor::set_data() would refuse to go from or to meta.
void replace_memory(const at::Tensor& tensor, c10::Device device) {
  const at::Tensor other = at::empty_strided(tensor.sizes(), tensor.strides(),
                                             tensor.options().device(device).requires_grad(false));
  tensor.unsafeGetTensorImpl()->shallow_copy_from(other.getIntrusivePtr());
  // The old accumulator is dropped, because it would accumulate on the device from which the tensor
  // came.
  if (torch::autograd::impl::get_autograd_meta(tensor) != nullptr) {
    torch::autograd::impl::set_grad_accumulator(tensor, WeakNodePtr(NodePtr()));
  }
}

// FNV-1a over the name, from the seed on.
uint64_t seed_of(uint64_t seed, const std::string& name) {
  uint64_t hash = 14695981039346656037U ^ seed;
  for (const char each : name) {
    hash = (hash ^ static_cast<unsigned char>(each)) * 1099511628211U;
  }
  return hash;
}

}  // namespace

void move_to_meta(torch::nn::Module& module,
                  const std::unordered_set<const c10::TensorImpl*>& kept) {
  for (at::Tensor& parameter : module.parameters()) {
    if (kept.count(parameter.unsafeGetTensorImpl()) != 0) continue;
    if (parameter.grad().defined()) parameter.mutable_grad() = at::Tensor();
    if (!parameter.is_meta()) replace_memory(parameter, c10::kMeta);
  }
  for (const at::Tensor& buffer : module.buffers()) {
    if (buffer.defined() && !buffer.is_meta()) replace_memory(buffer, c10::kMeta);
  }
}

void materialize(torch::nn::Module& layer, const std::string& prefix, c10::Device device,
                 uint64_t seed,
                 const std::function<void(const std::string&, at::Tensor&, at::Generator)>& init) {
  const at::NoGradGuard no_grad;
  const auto fill = [&](const std::string& name, at::Tensor tensor) {
    if (!tensor.defined() || !tensor.is_meta()) return;
    replace_memory(tensor, device);
    try {
      at::Tensor given = tensor;
      init(name, given, at::make_generator<at::CPUGeneratorImpl>(seed_of(seed, name)));
      TORCH_CHECK_VALUE(given.is_same(tensor),
                        "materialize's function has put another tensor in "
                        "the place of ",
                        text::in_quotes(name),
                        ", which has no values then; write into the one "
                        "that it is given, say with copy_()");
    } catch (...) {
      // The tensor goes back to meta, because it has no values. Another materialize() can fill it.
      replace_memory(tensor, c10::kMeta);
      throw;
    }
  };
  for (const auto& parameter : layer.named_parameters()) {
    fill(prefix + parameter.key(), parameter.value());
  }
  for (const auto& buffer : layer.named_buffers()) fill(prefix + buffer.key(), buffer.value());
}

void give_memory(const at::Tensor& tensor, c10::Device device) { replace_memory(tensor, device); }

}  // namespace gpipe::internal
