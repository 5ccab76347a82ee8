#include "gpipe/optim/muon.h"

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/optim/serialize.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

#include "gpipe/optim/fused_step.h"

namespace gpipe {
namespace {

using torch::optim::OptimizerParamGroup;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

void write(OutputArchive& archive, const char* name, const c10::IValue& value) {
  if (!value.isTensor() || value.toTensor().defined()) archive.write(name, value);
}

c10::IValue read(InputArchive& archive, const char* name) {
  c10::IValue value;
  archive.read(name, value);
  return value;
}

at::Tensor read_tensor(InputArchive& archive, const char* name) {
  c10::IValue value;
  return archive.try_read(name, value) ? value.toTensor() : at::Tensor();
}

void check_positive(double value, const char* name) {
  TORCH_CHECK_VALUE(value >= 0 && std::isfinite(value), "MuonOptions::", name,
                    " must be finite and at least 0, got ", value);
}

void check(const OptimizerParamGroup& group) {
  const auto* const options = dynamic_cast<const MuonOptions*>(&group.options());
  TORCH_CHECK_VALUE(options != nullptr,
                    "a group of gpipe::Muon has options of another optimizer; "
                    "give it gpipe::MuonOptions");
  check_positive(options->lr(), "lr");
  check_positive(options->weight_decay(), "weight_decay");
  check_positive(options->momentum(), "momentum");
  check_positive(options->ns_eps(), "ns_eps");
  check_positive(options->eps(), "eps");
  TORCH_CHECK_VALUE(options->ns_steps() >= 0 && options->ns_steps() < 100,
                    "MuonOptions::ns_steps must be from 0 to 99, got ", options->ns_steps());
  for (const double beta : {std::get<0>(options->betas()), std::get<1>(options->betas())}) {
    TORCH_CHECK_VALUE(beta >= 0 && beta < 1,
                      "MuonOptions::betas must be at least 0 and below 1, got ", beta);
  }
  if (options->kind() != MuonKind::kMuon) return;
  for (const at::Tensor& parameter : group.params()) {
    TORCH_CHECK_VALUE(
        parameter.dim() == 2, "a parameter of shape ", parameter.sizes(),
        " is in a group of MuonKind::kMuon, which is for matrices; put it into a group "
        "of MuonKind::kAdamW (gpipe::muon_groups)");
  }
}

// Returns an orthogonal matrix near `update`, in bfloat16, by Newton-Schulz iterations.
at::Tensor orthogonalized(const at::Tensor& update, const MuonOptions& options) {
  const auto [a, b, c] = options.ns_coefficients();
  const bool is_tall = update.size(0) > update.size(1);
  at::Tensor x = update.to(at::kBFloat16, /*non_blocking=*/false, /*copy=*/true);
  if (is_tall) x = x.t();
  x.div_(x.norm().clamp(options.ns_eps()));  // the largest singular value is now at most 1
  for (int64_t k = 0; k < options.ns_steps(); ++k) {
    const at::Tensor gram = x.mm(x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, b, c), x, a, 1);
  }
  return is_tall ? x.t() : x;
}

double scale_of(MuonScale scale, const at::Tensor& matrix) {
  const auto rows = static_cast<double>(matrix.size(0));
  const auto columns = static_cast<double>(matrix.size(1));
  switch (scale) {
    case MuonScale::kOriginal:
      return std::sqrt(std::max(1.0, rows / columns));
    case MuonScale::kMatchRmsAdamW:
      return 0.2 * std::sqrt(std::max(rows, columns));
    case MuonScale::kSpectralUnclamped:
      break;
  }
  return std::sqrt(rows / columns);
}

const MuonOptions& options_of(const OptimizerParamGroup& group) {
  return static_cast<const MuonOptions&>(group.options());
}

}  // namespace

std::unique_ptr<torch::optim::OptimizerOptions> MuonOptions::clone() const {
  return std::make_unique<MuonOptions>(*this);
}

void MuonOptions::serialize(OutputArchive& archive) const {
  write(archive, "kind", static_cast<int64_t>(kind()));
  write(archive, "lr", lr());
  write(archive, "weight_decay", weight_decay());
  write(archive, "momentum", momentum());
  write(archive, "nesterov", nesterov());
  write(archive, "ns_coefficients", ns_coefficients());
  write(archive, "ns_steps", ns_steps());
  write(archive, "ns_eps", ns_eps());
  write(archive, "adjust_lr", static_cast<int64_t>(adjust_lr()));
  write(archive, "betas", betas());
  write(archive, "eps", eps());
}

void MuonOptions::serialize(InputArchive& archive) {
  kind(static_cast<MuonKind>(read(archive, "kind").toInt()));
  lr(read(archive, "lr").toDouble());
  weight_decay(read(archive, "weight_decay").toDouble());
  momentum(read(archive, "momentum").toDouble());
  nesterov(read(archive, "nesterov").toBool());
  ns_coefficients(read(archive, "ns_coefficients").to<Coefficients>());
  ns_steps(read(archive, "ns_steps").toInt());
  ns_eps(read(archive, "ns_eps").toDouble());
  adjust_lr(static_cast<MuonScale>(read(archive, "adjust_lr").toInt()));
  betas(read(archive, "betas").to<Betas>());
  eps(read(archive, "eps").toDouble());
}

std::unique_ptr<torch::optim::OptimizerParamState> MuonParamState::clone() const {
  return std::make_unique<MuonParamState>(*this);
}

void MuonParamState::serialize(OutputArchive& archive) const {
  write(archive, "step", step());
  write(archive, "momentum_buffer", momentum_buffer());
  write(archive, "exp_avg", exp_avg());
  write(archive, "exp_avg_sq", exp_avg_sq());
}

void MuonParamState::serialize(InputArchive& archive) {
  step(read(archive, "step").toInt());
  momentum_buffer(read_tensor(archive, "momentum_buffer"));
  exp_avg(read_tensor(archive, "exp_avg"));
  exp_avg_sq(read_tensor(archive, "exp_avg_sq"));
}

Muon::Muon(std::vector<OptimizerParamGroup> groups, MuonOptions defaults)
    : Optimizer(groups, defaults.clone()) {
  for (size_t k = 0; k < groups.size(); ++k) {
    // LibTorch's constructor knows its own types of options only, and gives groups with other
    // options the default ones.
    if (groups[k].has_options()) param_groups_[k].set_options(groups[k].options().clone());
    check(param_groups_[k]);
  }
}

Muon::Muon(std::vector<at::Tensor> matrices, MuonOptions defaults)
    : Muon({OptimizerParamGroup(std::move(matrices))}, defaults) {}

void Muon::step_of_muon(const OptimizerParamGroup& group, const MuonOptions& options) {
  for (const at::Tensor& parameter : internal::updated_in(group)) {
    auto& state = internal::state_of<MuonParamState>(*this, parameter, [&](MuonParamState& made) {
      made.momentum_buffer(at::zeros_like(parameter.grad()));
    });
    state.step(state.step() + 1);
    at::Tensor& momentum = state.momentum_buffer();
    momentum.lerp_(parameter.grad(), 1 - options.momentum());
    const at::Tensor update =
        options.nesterov() ? parameter.grad().lerp(momentum, options.momentum()) : momentum;
    at::Tensor matrix = parameter;
    matrix.mul_(1 - options.lr() * options.weight_decay());
    matrix.add_(orthogonalized(update, options),
                -options.lr() * scale_of(options.adjust_lr(), parameter));
  }
}

void Muon::step_of_adamw(OptimizerParamGroup& group, const MuonOptions& options) {
  const auto [beta1, beta2] = options.betas();
  internal::adam_step<MuonParamState>(
      *this, group,
      {options.lr(), beta1, beta2, options.weight_decay(), options.eps(), /*amsgrad=*/false},
      [](auto&&... arguments) { at::_fused_adamw_(arguments...); });
}

torch::Tensor Muon::step(LossClosure closure) {
  const c10::NoGradGuard no_grad;
  torch::Tensor loss = internal::loss_of(closure);
  for (const OptimizerParamGroup& group : param_groups()) check(group);
  internal::check_for_kernels(*this, "Muon", [](const OptimizerParamGroup& group) {
    return options_of(group).kind() == MuonKind::kAdamW;
  });
  for (OptimizerParamGroup& group : param_groups()) {
    const MuonOptions& options = options_of(group);
    if (options.kind() == MuonKind::kMuon) {
      step_of_muon(group, options);
    } else {
      step_of_adamw(group, options);
    }
  }
  return loss;
}

void Muon::save(OutputArchive& archive) const {
  torch::optim::serialize<MuonParamState, MuonOptions>(archive, *this);
}

void Muon::load(InputArchive& archive) {
  torch::optim::serialize<MuonParamState, MuonOptions>(archive, *this);
}

std::vector<OptimizerParamGroup> muon_groups(
    const torch::OrderedDict<std::string, at::Tensor>& parameters,
    const std::function<bool(const std::string& name, const at::Tensor& parameter)>& is_for_muon,
    MuonOptions for_muon, MuonOptions for_adamw) {
  TORCH_CHECK_VALUE(is_for_muon != nullptr,
                    "muon_groups needs a function that says which parameters are for Muon");
  std::vector<at::Tensor> matrices;
  std::vector<at::Tensor> others;
  for (const auto& item : parameters) {
    (is_for_muon(item.key(), item.value()) ? matrices : others).push_back(item.value());
  }
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::move(matrices), for_muon.kind(MuonKind::kMuon).clone());
  groups.emplace_back(std::move(others), for_adamw.kind(MuonKind::kAdamW).clone());
  return groups;
}

}  // namespace gpipe
