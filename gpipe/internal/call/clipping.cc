#include "gpipe/internal/call/clipping.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <cstring>
#include <iomanip>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

namespace gpipe::internal {
namespace {

// The host reads the copy at once.
at::Tensor brought_to(c10::Device device, const at::Tensor& tensor) {
  return tensor.to(device, /*non_blocking=*/!device.is_cpu());
}

at::Tensor norm_of(const at::Tensor& tensor, double norm_type) {
  return std::isinf(norm_type) ? tensor.abs().max() : tensor.norm(norm_type);
}

// The norm of a gradient on its way to the other processes.
struct TravellingNorm {
  int64_t parameter = 0;
  int64_t type = 0;  // c10::ScalarType
  char bytes[16] = {};
};

// The norms of all processes, in the order of the parameters. `norms`: of those that are here.
std::vector<at::Tensor> of_all(Processes& processes, const std::string& name,
                               const std::map<int64_t, at::Tensor>& norms) {
  std::vector<TravellingNorm> own;
  for (const auto& [parameter, norm] : norms) {
    TravellingNorm travelling{parameter, static_cast<int64_t>(norm.scalar_type()), {}};
    const at::Tensor here = norm.cpu();
    std::memcpy(travelling.bytes, here.const_data_ptr(), here.nbytes());
    own.push_back(travelling);
  }
  std::map<int64_t, at::Tensor> all;
  const std::string own_bytes(reinterpret_cast<const char*>(own.data()),
                              own.size() * sizeof(TravellingNorm));
  for (const std::string& bytes : exchange_long(processes, name, own_bytes)) {
    for (size_t k = 0; k < bytes.size(); k += sizeof(TravellingNorm)) {
      TravellingNorm travelling;
      std::memcpy(&travelling, bytes.data() + k, sizeof travelling);
      at::Tensor norm = at::empty({}, static_cast<c10::ScalarType>(travelling.type));
      std::memcpy(norm.mutable_data_ptr(), travelling.bytes, norm.nbytes());
      all.emplace(travelling.parameter, std::move(norm));
    }
  }
  std::vector<at::Tensor> in_order;
  for (auto& [parameter, norm] : all) in_order.push_back(std::move(norm));
  return in_order;
}

}  // namespace

double clip_gradients(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type,
                      bool error_if_nonfinite, Processes* processes, const std::string& name) {
  TORCH_CHECK_VALUE(max_norm >= 0, "max_norm must be at least 0, got ", max_norm);
  TORCH_CHECK_VALUE(norm_type >= 0, "norm_type must be at least 0, got ", norm_type);
  c10::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  std::map<int64_t, at::Tensor> norms_here;  // by the number of the parameter
  std::unordered_set<const c10::TensorImpl*> seen;
  for (size_t k = 0; k < parameters.size(); ++k) {
    const at::Tensor& gradient = parameters[k].grad();
    if (!gradient.defined()) continue;
    if (!seen.insert(parameters[k].unsafeGetTensorImpl()).second) continue;  // a tied one
    gradients.push_back(gradient);
    at::Tensor norm = norm_type == 0 ? at::full({}, 1.0) : norm_of(gradient, norm_type);
    norms_here.emplace(static_cast<int64_t>(k), brought_to(gradients[0].device(), norm));
  }
  std::vector<at::Tensor> norms;
  if (processes == nullptr) {
    for (auto& [parameter, norm] : norms_here) norms.push_back(std::move(norm));
  } else {
    // With others each process would scale its gradients by another factor.
    std::ostringstream arguments;
    arguments << std::setprecision(std::numeric_limits<double>::max_digits10) << max_norm << ", "
              << norm_type << ", " << (error_if_nonfinite ? "true" : "false");
    processes->agree("the arguments of " + name, arguments.str());
    norms = of_all(*processes, name, norms_here);
  }
  if (norms.empty()) return 0;

  at::Tensor total;
  if (norm_type == 0) {
    total = at::full({}, static_cast<double>(norms.size()));
  } else {
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

}  // namespace gpipe::internal
