#include "gpipe/zero_optimizer.h"

#include <c10/util/Exception.h>

#include <cstdint>
#include <unordered_set>
#include <utility>

#include "gpipe/internal/processes/processes.h"
#include "gpipe/internal/replicas/reduction.h"
#include "gpipe/world.h"

namespace gpipe {

ZeroOptimizer::ZeroOptimizer(GPipe pipe, const Make& make)
    : pipe_(std::move(pipe)),
      parameters_(pipe_->local_parameters()),
      owners_(internal::owners_of(pipe_->world(), parameters_)) {
  TORCH_CHECK_VALUE(make != nullptr, "ZeroOptimizer was given an empty function");
  const World& world = pipe_->world();
  std::unordered_set<const c10::TensorImpl*> own;
  for (size_t k = 0; k < parameters_.size(); ++k) {
    if (owners_[k] != world.replica()) continue;
    owned_.push_back(parameters_[k]);
    own.insert(parameters_[k].unsafeGetTensorImpl());
  }
  optimizer_ = make(owned_);
  TORCH_CHECK_VALUE(optimizer_ != nullptr, "the function of ZeroOptimizer returned no optimizer");
  for (const auto& group : optimizer_->param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      TORCH_CHECK_VALUE(own.count(parameter.unsafeGetTensorImpl()) != 0,
                        "the function of ZeroOptimizer made an optimizer of a parameter of shape ",
                        parameter.sizes(),
                        " that it was not given: other replicas keep the states of the others");
    }
  }
}

void ZeroOptimizer::step() {
  const World& world = pipe_->world();
  internal::Processes* const processes = world.processes().get();
  internal::in_call(processes, [&] {
    // Whoever is in another call is named, and nothing is changed.
    if (processes != nullptr) processes->agree(pipe_->call_name("ZeroOptimizer::step"), "");
    optimizer_->step();
    if (world.replicas() == 1) return true;
    std::vector<at::Tensor> trained;
    std::vector<int64_t> owners;
    for (size_t k = 0; k < parameters_.size(); ++k) {
      if (!parameters_[k].requires_grad()) continue;
      trained.push_back(parameters_[k]);
      owners.push_back(owners_[k]);
    }
    internal::share_over_replicas(world, trained, owners);
    return true;
  });
}

void ZeroOptimizer::zero_grad(bool set_to_none) {
  for (const at::Tensor& parameter : parameters_) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) continue;
    if (set_to_none) {
      gradient.reset();
    } else {
      gradient.detach_().zero_();
    }
  }
}

}  // namespace gpipe
