#include "experiments/rivals/fill.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

namespace gpipe::experiments {
namespace {

constexpr uint32_t kInput = 2000000;
constexpr uint32_t kTarget = 2000001;

void overwrite(const at::Tensor& tensor, const std::function<double(uint32_t i)>& value) {
  float* const data = tensor.mutable_data_ptr<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    data[i] = static_cast<float>(value(static_cast<uint32_t>(i)));
  }
}

at::Tensor unit_values(uint32_t k, std::vector<int64_t> shape) {
  const at::Tensor tensor = at::empty(shape, at::kFloat);
  overwrite(tensor, [k](uint32_t i) { return 0.5 + 0.5 * fill_value(k, i); });
  return tensor;
}

}  // namespace

// The mixing steps are those of MurmurHash3.
double fill_value(uint32_t k, uint32_t i) {
  uint32_t h = i + k * 0x9E3779B9u;
  h ^= h >> 16;
  h *= 0x85EBCA6Bu;
  h ^= h >> 13;
  h *= 0xC2B2AE35u;
  h ^= h >> 16;
  return 2 * (h / 4294967296.0 - 0.5);
}

void fill_parameters(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  uint32_t k = 0;
  for (const auto& parameter : module.named_parameters()) {
    const at::Tensor& tensor = parameter.value();
    if (tensor.dim() > 1) {
      const auto inputs = static_cast<double>(tensor.numel() / tensor.size(0));
      const double bound = std::sqrt(3 / inputs);
      overwrite(tensor, [&](uint32_t i) { return bound * fill_value(k, i); });
    } else {
      const std::string& name = parameter.key();
      const bool weight = name.size() >= 6 && name.compare(name.size() - 6, 6, "weight") == 0;
      overwrite(tensor, [&](uint32_t i) { return (weight ? 1 : 0) + 0.2 * fill_value(k, i); });
    }
    ++k;
  }
}

at::Tensor filled_input(const models::NamedModel& model, int64_t rows) {
  std::vector<int64_t> shape = model.row;
  shape.insert(shape.begin(), rows);
  return unit_values(kInput, shape);
}

at::Tensor filled_target(const models::NamedModel& model, int64_t rows) {
  if (model.loss == models::Loss::kBinaryCrossEntropyWithLogits) {
    return unit_values(kTarget, {rows, 1, model.row[1], model.row[2]});
  }
  const at::Tensor labels = at::empty({rows}, at::kLong);
  for (int64_t i = 0; i < rows; ++i) labels.mutable_data_ptr<int64_t>()[i] = 7 * i % 1000;
  return labels;
}

}  // namespace gpipe::experiments
