#include "gpipe/zero_optimizer.h"

#include <c10/util/Exception.h>

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_set>
#include <utility>

#include "gpipe/internal/call/together.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/internal/replicas/forms.h"
#include "gpipe/internal/replicas/reduction.h"
#include "gpipe/internal/replicas/shards.h"
#include "gpipe/internal/run/pipeline.h"
#include "gpipe/world.h"

namespace gpipe {
namespace {

// Which parameters their owners' optimizers may change now, agreed on by all processes:
// [parameter] the owner, or internal::kNobody. Optimizers change every parameter that has a
// gradient, even one that was frozen since. Throws FoundByAll if replicas have different
// parameters, or have frozen different ones.
std::vector<int64_t> owners_of_changes(const World& world,
                                       const std::vector<at::Tensor>& parameters,
                                       std::vector<int64_t> owners) {
  // The owners follow from what was frozen when the optimizer was made.
  const std::string given(owners.begin(), owners.end());
  std::string own = internal::form_of(parameters) + ", shared out by " +
                    std::to_string(std::hash<std::string>()(given)) + " ";
  for (const at::Tensor& parameter : parameters) {
    own += parameter.requires_grad() || parameter.grad().defined() ? '1' : '0';
  }
  std::vector<std::string> forms;    // [rank]
  std::vector<std::string> changes;  // [rank][parameter]
  for (const std::string& text :
       internal::exchange_long(*world.processes(), "the parameters", own)) {
    const size_t space = text.rfind(' ');
    forms.push_back(text.substr(0, space));
    changes.push_back(text.substr(space + 1));
  }
  internal::check_forms(world, "the parameters", forms);
  for (size_t k = 0; k < parameters.size(); ++k) {
    const int64_t owner = world.rank_of(owners[k], world.process());
    if (changes.at(static_cast<size_t>(owner)).at(k) == '0') owners[k] = internal::kNobody;
  }
  return owners;
}

}  // namespace

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
    // Refuses, and names the processes that are in another call, before anything is changed.
    if (processes != nullptr) processes->agree(pipe_->call_name("ZeroOptimizer::step"), "");
    internal::agree_after_failed_update(world, pipe_->call_name("ZeroOptimizer::step"),
                                        *pipe_->pipeline_, *pipe_);
    std::vector<int64_t> owners;
    if (world.replicas() > 1) owners = owners_of_changes(world, parameters_, owners_);
    // If one of the replicas throws, the others may have updated their parameters.
    pipe_->pipeline_->set_replicas_may_differ(world.replicas() > 1);
    optimizer_->step();
    if (world.replicas() > 1) internal::share_over_replicas(world, parameters_, owners);
    // If one process has thrown above, all learn it here, before they go on.
    if (processes != nullptr) {
      (void)processes->exchange("the end of " + pipe_->call_name("ZeroOptimizer::step"), "",
                                /*is_patient=*/true);
    }
    pipe_->pipeline_->set_replicas_may_differ(false);
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
