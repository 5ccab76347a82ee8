#include "models/hash_fill.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <cmath>
#include <string>

namespace gpipe::models {

// The mixing steps are those of MurmurHash3.
double hash_value(uint32_t k, uint32_t i) {
  uint32_t h = i + k * 0x9E3779B9u;
  h ^= h >> 16;
  h *= 0x85EBCA6Bu;
  h ^= h >> 13;
  h *= 0xC2B2AE35u;
  h ^= h >> 16;
  return 2 * (h / 4294967296.0 - 0.5);
}

void overwrite(const at::Tensor& tensor, const std::function<double(int64_t i)>& value) {
  const at::Tensor values = at::empty(tensor.sizes(), at::kDouble);
  double* const data = values.mutable_data_ptr<double>();
  for (int64_t i = 0; i < values.numel(); ++i) data[i] = value(i);
  const torch::NoGradGuard no_grad;
  tensor.copy_(values);
}

void hash_fill_parameters(const torch::nn::Module& module) {
  uint32_t k = 0;
  for (const auto& parameter : module.named_parameters()) {
    const at::Tensor& tensor = parameter.value();
    if (tensor.is_meta()) {
      // A parameter on meta only takes its number `k` and is not filled.
    } else if (tensor.dim() > 1) {
      const int64_t inputs = tensor.numel() / tensor.size(0);
      const double bound = std::sqrt(3 / static_cast<double>(inputs));
      overwrite(tensor, [&](int64_t i) { return bound * hash_value(k, static_cast<uint32_t>(i)); });
    } else {
      const std::string& name = parameter.key();
      const bool weight = name.size() >= 6 && name.compare(name.size() - 6, 6, "weight") == 0;
      overwrite(tensor, [&](int64_t i) {
        return (weight ? 1 : 0) + 0.2 * hash_value(k, static_cast<uint32_t>(i));
      });
    }
    ++k;
  }
}

}  // namespace gpipe::models
