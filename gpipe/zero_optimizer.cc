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
    : pipe_(std::move(pipe)), parameters_(pipe_->local_parameters()) {
  TORCH_CHECK_VALUE(make != nullptr, "ZeroOptimizer was given an empty function");
  const World& world = pipe_->world();
  const std::vector<int64_t> owners = internal::owners_of(world, parameters_);
  std::unordered_set<const c10::TensorImpl*> own;
  for (size_t k = 0; k < parameters_.size(); ++k) {
    if (owners[k] != world.replica()) continue;
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
  internal::in_call(world.processes().get(), [&] {
    optimizer_->step();
    if (world.replicas() > 1) internal::share_over_replicas(world, parameters_);
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
