#include "gpipe/saving/states_to_come.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "gpipe/optim/muon.h"

namespace gpipe::internal {
namespace {

// What a file has for a tensor beside its bytes: name, type, shape and place, and the entry in the
// optimizer's record.
constexpr int64_t kHeaderBytes = 160;

// The number of tensors, each as large as the parameter, that the optimizer keeps for a parameter
// of a group with these options.
int64_t tensors_of(const torch::optim::OptimizerOptions& given) {
  namespace optim = torch::optim;
  if (const auto* adam = dynamic_cast<const optim::AdamOptions*>(&given)) {
    return adam->amsgrad() ? 3 : 2;
  }
  if (const auto* adamw = dynamic_cast<const optim::AdamWOptions*>(&given)) {
    return adamw->amsgrad() ? 3 : 2;
  }
  if (const auto* sgd = dynamic_cast<const optim::SGDOptions*>(&given)) {
    return sgd->momentum() != 0 ? 1 : 0;
  }
  if (const auto* rmsprop = dynamic_cast<const optim::RMSpropOptions*>(&given)) {
    return 1 + (rmsprop->momentum() > 0 ? 1 : 0) + (rmsprop->centered() ? 1 : 0);
  }
  if (dynamic_cast<const optim::AdagradOptions*>(&given) != nullptr) return 1;
  if (const auto* muon = dynamic_cast<const MuonOptions*>(&given)) {
    return muon->kind() == MuonKind::kMuon ? 1 : 2;
  }
  return 2;
}

}  // namespace

int64_t bytes_to_come(const torch::optim::Optimizer& optimizer) {
  int64_t bytes = 0;
  for (const auto& group : optimizer.param_groups()) {
    const int64_t tensors = tensors_of(group.options());
    for (const at::Tensor& parameter : group.params()) {
      const bool is_frozen = !parameter.requires_grad() && !parameter.grad().defined();
      if (is_frozen || optimizer.state().count(parameter.unsafeGetTensorImpl()) != 0) continue;
      bytes += tensors * (static_cast<int64_t>(parameter.nbytes()) + kHeaderBytes);
    }
  }
  return bytes;
}

}  // namespace gpipe::internal
