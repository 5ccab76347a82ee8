#include "gpipe/internal/call/clipping.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/internal/tensors/brought_to.h"
#include "gpipe/runtime/bytes.h"
#include "text/shown.h"

namespace gpipe::internal {
namespace {

at::Tensor norm_of(const at::Tensor& tensor, double norm_type) {
  return std::isinf(norm_type) ? tensor.abs().max() : tensor.norm(norm_type);
}

// The norm of a gradient on its way to the other processes.
struct TravellingNorm {
  int64_t parameter = 0;
  c10::ScalarType type = c10::ScalarType::Undefined;
  double value = 0;  // all types that norms have can be told exactly as a double
};
auto fields(TravellingNorm& norm) { return std::tie(norm.parameter, norm.type, norm.value); }

// `norms`: on the host.
std::string norms_to_bytes(const std::map<int64_t, at::Tensor>& norms) {
  std::vector<TravellingNorm> all;
  for (const auto& [parameter, norm] : norms) {
    all.push_back({parameter, norm.scalar_type(), norm.item<double>()});
  }
  return to_bytes(all);
}

std::map<int64_t, at::Tensor> norms_of(const std::string& bytes) {
  std::map<int64_t, at::Tensor> norms;
  for (const auto& norm : from_bytes<std::vector<TravellingNorm>>(bytes, "the norms")) {
    norms.emplace(norm.parameter, at::full({}, norm.value, norm.type));
  }
  return norms;
}

// Whether two norms may belong to the same gradient. Gradients with different strides are added up
// in different orders, so their norms differ a little.
bool are_alike(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type()) return false;
  const double here = a.item<double>();
  const double there = b.item<double>();
  if (!std::isfinite(here) || !std::isfinite(there)) {
    return std::isnan(here) ? std::isnan(there) : here == there;
  }
  const double tolerance = a.element_size() >= 4 ? 1e-3 : 2e-2;  // for half types: a few units
  return std::abs(here - there) <= tolerance * std::max(std::abs(here), std::abs(there));
}

// A part of a message, like "has the norm 3.5 on rank 1", or "is not there on rank 1".
std::string norm_text(const std::map<int64_t, at::Tensor>& norms, int64_t parameter, size_t rank) {
  const auto norm = norms.find(parameter);
  const std::string on_rank = absl::StrCat(" on rank ", rank);
  if (norm == norms.end()) return "is not there" + on_rank;
  return absl::StrCat("has the norm ", norm->second.item<double>(), on_rank);
}

// Throws FoundByAll for a gradient that differs between two replicas. `here`: the first replica's
// norms.
void check_replica(const std::map<int64_t, at::Tensor>& here, size_t here_rank,
                   const std::map<int64_t, at::Tensor>& there, size_t there_rank,
                   const std::string& name, const std::vector<std::string>& keys) {
  std::unordered_set<int64_t> parameters;
  for (const auto& [parameter, norm] : here) parameters.insert(parameter);
  for (const auto& [parameter, norm] : there) parameters.insert(parameter);
  for (size_t k = 0; k < keys.size(); ++k) {
    const auto parameter = static_cast<int64_t>(k);
    if (parameters.count(parameter) == 0) continue;
    const auto of_here = here.find(parameter);
    const auto of_there = there.find(parameter);
    if (of_here != here.end() && of_there != there.end() &&
        are_alike(of_here->second, of_there->second)) {
      continue;
    }
    found_by_all(absl::StrCat(
        name, ": the gradient of ", text::in_quotes(keys[k]), " differs between replicas: it ",
        norm_text(here, parameter, here_rank), ", and ", norm_text(there, parameter, there_rank),
        ". step() leaves the same gradients in all replicas, so something has changed this one in "
        "some of them (by hand, or in a hook). Change gradients in all replicas alike, or call "
        "zero_grad() and step() again"));
  }
}

// The norms of all processes, in the order of the parameters, on the host. `norms`: those in this
// process, on the host.
std::vector<at::Tensor> of_all(const World& world, const std::string& name,
                               const std::map<int64_t, at::Tensor>& norms,
                               const std::vector<std::string>& keys) {
  std::map<int64_t, at::Tensor> all;
  const auto each = static_cast<size_t>(world.processes_each());
  std::vector<std::map<int64_t, at::Tensor>> of_first;  // [process of the first replica]
  size_t rank = 0;
  for (const std::string& bytes : exchange_long(*world.processes(), name, norms_to_bytes(norms))) {
    std::map<int64_t, at::Tensor> of_rank = norms_of(bytes);
    if (rank < each) {
      all.insert(of_rank.begin(), of_rank.end());
      of_first.push_back(std::move(of_rank));
    } else {
      check_replica(of_first[rank % each], rank % each, of_rank, rank, name, keys);
    }
    ++rank;
  }
  std::vector<at::Tensor> in_order;
  for (auto& [parameter, norm] : all) in_order.push_back(std::move(norm));
  return in_order;
}

}  // namespace

double clip_gradients(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type,
                      bool error_if_nonfinite, const World& world, const std::string& name,
                      const std::vector<std::string>& keys) {
  TORCH_CHECK_VALUE(max_norm >= 0, "max_norm must be at least 0, got ", max_norm);
  TORCH_CHECK_VALUE(norm_type >= 0, "norm_type must be at least 0, got ", norm_type);
  c10::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  std::vector<int64_t> numbers;   // of their parameters
  std::vector<at::Tensor> norms;  // theirs
  std::unordered_set<const c10::TensorImpl*> seen;
  for (size_t k = 0; k < parameters.size(); ++k) {
    const at::Tensor& gradient = parameters[k].grad();
    if (!gradient.defined()) continue;
    if (!seen.insert(parameters[k].unsafeGetTensorImpl()).second) continue;  // tied: counts once
    gradients.push_back(gradient);
    numbers.push_back(static_cast<int64_t>(k));
    norms.push_back(norm_type == 0 ? at::full({}, 1.0) : norm_of(gradient, norm_type));
  }
  if (world.processes() != nullptr) {
    std::map<int64_t, at::Tensor> norms_here;
    norms = brought_to(c10::kCPU, norms);
    for (size_t k = 0; k < norms.size(); ++k) norms_here.emplace(numbers[k], norms[k]);
    norms = of_all(world, name, norms_here, keys);
  } else if (norm_type != 0) {
    norms = brought_to(gradients.empty() ? c10::kCPU : gradients[0].device(), norms);
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
    if (!here.defined()) here = brought_to(gradient.device(), {factor}).front();
    gradient.mul_(here);
  }
  return known ? *known : total.item<double>();
}

}  // namespace gpipe::internal
