// Muon: an optimizer for the matrices of a model, with AdamW for its other parameters.
#ifndef GPIPE_OPTIM_MUON_H_
#define GPIPE_OPTIM_MUON_H_

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>
#include <torch/serialize/archive.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace gpipe {

// The rule by which a group of parameters is updated.
enum class MuonKind {
  kMuon,   // matrices: torch.optim.Muon of Python
  kAdamW,  // parameters of any shape: FusedAdamW
};

// How the learning rate of a matrix of A rows and B columns is scaled, as by adjust_lr_fn of
// torch.optim.Muon in Python.
enum class MuonScale {
  kOriginal,           // by sqrt(max(1, A / B))
  kMatchRmsAdamW,      // by 0.2 sqrt(max(A, B)): takes AdamW's learning rate and decay
  kSpectralUnclamped,  // by sqrt(A / B)
};

// The options of a group. Names and defaults are those of torch.optim.Muon and torch.optim.AdamW.
struct MuonOptions final : public torch::optim::OptimizerOptions {
  MuonOptions(double lr = 1e-3) : lr_(lr) {}  // NOLINT(google-explicit-constructor): as LibTorch's

  using Coefficients = std::tuple<double, double, double>;
  using Betas = std::tuple<double, double>;

  TORCH_ARG(MuonKind, kind) = MuonKind::kMuon;
  TORCH_ARG(double, lr);
  TORCH_ARG(double, weight_decay) = 0.1;
  // Options that only kMuon uses.
  TORCH_ARG(double, momentum) = 0.95;
  TORCH_ARG(bool, nesterov) = true;
  TORCH_ARG(Coefficients, ns_coefficients) = {3.4445, -4.7750, 2.0315};
  TORCH_ARG(int64_t, ns_steps) = 5;
  TORCH_ARG(double, ns_eps) = 1e-7;
  TORCH_ARG(MuonScale, adjust_lr) = MuonScale::kOriginal;
  // Options that only kAdamW uses.
  TORCH_ARG(Betas, betas) = {0.9, 0.999};
  TORCH_ARG(double, eps) = 1e-8;

 public:
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override;
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr_; }
  void set_lr(double lr) override { lr_ = lr; }
};

struct MuonParamState final : public torch::optim::OptimizerParamState {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(at::Tensor, momentum_buffer);  // of kMuon
  TORCH_ARG(at::Tensor, exp_avg);          // of kAdamW, like exp_avg_sq
  TORCH_ARG(at::Tensor, exp_avg_sq);

 public:
  std::unique_ptr<torch::optim::OptimizerParamState> clone() const override;
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

// Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024: a matrix moves by
// its momentum, orthogonalized. Each parameter is treated alone, so ZeroOptimizer can give
// parameters to different replicas. Groups may be empty, e.g. in a process that has no matrix.
//
// Throws c10::ValueError for options that are out of their bounds, and for a parameter of a group
// of kMuon that is not a matrix. step() throws the same type, before anything changes, for complex
// parameters and sparse gradients.
//
// Thread-safety: one call at a time, as for torch::optim's optimizers.
class Muon final : public torch::optim::Optimizer {
 public:
  // `defaults`: the options of groups that have none.
  explicit Muon(std::vector<torch::optim::OptimizerParamGroup> groups, MuonOptions defaults = {});
  // Makes one group of kMuon. All its parameters must be matrices.
  explicit Muon(std::vector<at::Tensor> matrices, MuonOptions defaults = {});

  torch::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  void step_of_muon(const torch::optim::OptimizerParamGroup& group, const MuonOptions& options);
  void step_of_adamw(torch::optim::OptimizerParamGroup& group, const MuonOptions& options);
};

// Returns two groups: the parameters for which `is_for_muon` returns true, and the other ones. By
// convention embeddings and the last layer are for AdamW, although they are matrices.
//
// Example:
//   auto groups = gpipe::muon_groups(pipe->local_named_parameters(), [](const std::string& name,
//                                                                      const torch::Tensor& p) {
//     return p.dim() == 2 && name.find("embedding") == std::string::npos;
//   }, gpipe::MuonOptions(0.02), gpipe::MuonOptions(3e-4));
//   gpipe::Muon optimizer(std::move(groups));
std::vector<torch::optim::OptimizerParamGroup> muon_groups(
    const torch::OrderedDict<std::string, at::Tensor>& parameters,
    const std::function<bool(const std::string& name, const at::Tensor& parameter)>& is_for_muon,
    MuonOptions for_muon = {}, MuonOptions for_adamw = {});

}  // namespace gpipe

#endif  // GPIPE_OPTIM_MUON_H_
