#include "gpipe/clip_grad.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <optional>
#include <unordered_map>

namespace gpipe {
namespace {

// The host reads the copy at once.
at::Tensor brought_to(c10::Device device, const at::Tensor& tensor) {
  return tensor.to(device, /*non_blocking=*/!device.is_cpu());
}

at::Tensor norm_of(const at::Tensor& tensor, double norm_type) {
  return std::isinf(norm_type) ? tensor.abs().max() : tensor.norm(norm_type);
}

}  // namespace

double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type,
                       bool error_if_nonfinite) {
  TORCH_CHECK_VALUE(max_norm >= 0, "max_norm must be at least 0, got ", max_norm);
  TORCH_CHECK_VALUE(norm_type >= 0, "norm_type must be at least 0, got ", norm_type);
  c10::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  if (gradients.empty()) return 0;

  at::Tensor total;
  if (norm_type == 0) {
    total = at::full({}, static_cast<double>(gradients.size()));
  } else {
    std::vector<at::Tensor> norms;
    for (const at::Tensor& gradient : gradients) {
      norms.push_back(brought_to(gradients[0].device(), norm_of(gradient, norm_type)));
    }
    total = norms.size() == 1 ? norms[0] : norm_of(at::stack(norms), norm_type);
  }
  std::optional<double> known;
  if (error_if_nonfinite) {
    known = total.item<double>();
    TORCH_CHECK_VALUE(
        std::isfinite(*known), "the gradients' norm of order ", norm_type, " is ", *known,
        "; a step with StepOptions().check_finite(true) names the layer that gives it "
        "first, or leave error_if_nonfinite out");
  }
  const at::Tensor factor = at::clamp(max_norm / (total + 1e-6), std::nullopt, 1.0);
  std::unordered_map<c10::Device, at::Tensor> factors;
  for (at::Tensor& gradient : gradients) {
    at::Tensor& here = factors[gradient.device()];
    if (!here.defined()) here = brought_to(gradient.device(), factor);
    gradient.mul_(here);
  }
  return known ? *known : total.item<double>();
}

}  // namespace gpipe
