#include "gpipe/zero_optimizer.h"

#include <c10/util/Exception.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "gpipe/internal/call/between_runs.h"
#include "gpipe/internal/call/call_agreement.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/internal/replicas/reduction.h"
#include "gpipe/internal/replicas/shards.h"
#include "gpipe/internal/replicas/signatures.h"
#include "gpipe/internal/run/pipeline.h"
#include "gpipe/runtime/bytes.h"
#include "gpipe/world.h"

namespace gpipe {
namespace {

// The group's learning rate; nothing if the user's options do not override get_lr().
std::optional<double> rate_of(const torch::optim::OptimizerParamGroup& group) {
  try {
    return group.options().get_lr();
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

// The rates of the groups as text, like "0.001 0.01", with enough digits to tell any two doubles
// apart.
std::string rates_of(const torch::optim::Optimizer& optimizer) {
  std::vector<std::string> rates;
  for (const auto& group : optimizer.param_groups()) {
    const std::optional<double> rate = rate_of(group);
    rates.push_back(rate ? absl::StrFormat("%.17g", *rate) : "none");
  }
  return absl::StrJoin(rates, " ");
}

// Throws FoundByAll if two ranks have the same rates at the beginning and different ones now.
// Groups that were made differently (a rate for each layer, say) cannot be compared.
void check_rates(const std::vector<std::string>& first, const std::vector<std::string>& now) {
  for (size_t rank = 1; rank < now.size(); ++rank) {
    for (size_t other = 0; other < rank; ++other) {
      if (first[rank] != first[other] || now[rank] == now[other]) continue;
      internal::found_by_all(absl::StrCat(
          "ZeroOptimizer::step: the learning rates of the groups are ", now[other], " on rank ",
          other, " and ", now[rank], " on rank ", rank, ", and were ", first[rank],
          " on both when the optimizer was made: set them on all ranks alike "
          "(param_groups(), or a scheduler that each rank steps)"));
    }
  }
}

// Which parameters their owners' optimizers may change now, agreed on by all processes:
// [parameter] the owner, or internal::kNobody. Optimizers change every parameter that has a
// gradient, even one that was frozen since. Throws FoundByAll if replicas have different
// parameters, or have frozen different ones, and as check_rates() does.
std::vector<int64_t> owners_of_changes(const World& world,
                                       const std::vector<at::Tensor>& parameters,
                                       std::vector<int64_t> owners, const std::string& first_rates,
                                       const std::string& rates) {
  // The ranks compare the owners, too: owners depend on which parameters were frozen when the
  // optimizer was made.
  const std::string given(owners.begin(), owners.end());
  std::vector<std::string> own{internal::signature_of(parameters) + ", shared out by " +
                                   std::to_string(std::hash<std::string>()(given)),
                               first_rates, rates, ""};
  for (const at::Tensor& parameter : parameters) {
    own.back() += parameter.requires_grad() || parameter.grad().defined() ? '1' : '0';
  }
  std::array<std::vector<std::string>, 4> texts;  // [text of `own`][rank]
  for (const std::string& bytes :
       internal::exchange_long(*world.processes(), "the parameters", internal::to_bytes(own))) {
    const auto of_rank = internal::from_bytes<std::vector<std::string>>(bytes);
    for (size_t k = 0; k < texts.size(); ++k) texts[k].push_back(of_rank.at(k));
  }
  const auto& [signatures, first, now, changes] = texts;
  internal::check_signatures(world, "the parameters", signatures);
  check_rates(first, now);
  for (size_t k = 0; k < parameters.size(); ++k) {
    const int64_t owner = world.rank_of(owners[k], world.process());
    if (changes.at(static_cast<size_t>(owner)).at(k) == '0') owners[k] = internal::kNobody;
  }
  return owners;
}

}  // namespace

ZeroOptimizer::ZeroOptimizer(GPipe pipe, const Make& make)
    : torch::optim::Optimizer(std::vector<torch::optim::OptimizerParamGroup>(), nullptr),
      pipe_(std::move(pipe)) {
  internal::Processes* const processes = pipe_->world().processes().get();
  // `make` is the user's code, and may throw on one rank alone.
  internal::in_call(processes, [&] {
    const std::string name = pipe_->call_name("the making of a ZeroOptimizer");
    if (processes != nullptr) processes->agree(name, "");
    build(make);
    if (processes != nullptr) {
      (void)processes->exchange("the end of " + name, "", /*is_patient=*/true);
    }
    return true;
  });
}

void ZeroOptimizer::build(const Make& make) {
  parameters_ = pipe_->local_parameters();
  owners_ = internal::owners_of(pipe_->world(), parameters_);
  TORCH_CHECK_VALUE(make != nullptr,
                    "ZeroOptimizer was given an empty function; give one that makes an optimizer "
                    "of the parameters that it is given");
  const World& world = pipe_->world();
  std::unordered_set<const c10::TensorImpl*> own;
  std::vector<at::Tensor> others;
  for (size_t k = 0; k < parameters_.size(); ++k) {
    if (owners_[k] != world.replica()) {
      others.push_back(parameters_[k]);
      continue;
    }
    owned_.push_back(parameters_[k]);
    own.insert(parameters_[k].unsafeGetTensorImpl());
  }
  optimizer_ = make(owned_);
  TORCH_CHECK_VALUE(optimizer_ != nullptr,
                    "the function of ZeroOptimizer returned null; return an optimizer of the "
                    "parameters that it is given");
  TORCH_CHECK_VALUE(!optimizer_->param_groups().empty(),
                    "the function of ZeroOptimizer made an optimizer without groups: make the same "
                    "groups on all ranks, also where a group has no parameters");
  for (const auto& group : optimizer_->param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      TORCH_CHECK_VALUE(own.count(parameter.unsafeGetTensorImpl()) != 0,
                        "the function of ZeroOptimizer made an optimizer of a parameter of shape ",
                        parameter.sizes(),
                        " that it was not given: other replicas keep the states of the others");
    }
    param_groups_.push_back(group);
  }
  std::vector<at::Tensor>& first = param_groups_.front().params();
  first.insert(first.end(), others.begin(), others.end());
  defaults_ = param_groups_.front().options().clone();
  first_rates_ = rates_of(*this);
  give_options();
}

void ZeroOptimizer::give_options() const {
  const auto count = [](const std::vector<torch::optim::OptimizerParamGroup>& groups) {
    size_t parameters = 0;
    for (const auto& group : groups) parameters += group.params().size();
    return parameters;
  };
  std::vector<torch::optim::OptimizerParamGroup>& groups = optimizer_->param_groups();
  const size_t here = count(param_groups_);
  const size_t expected = parameters_.size() - owned_.size() + count(groups);
  TORCH_CHECK_VALUE(param_groups_.size() == groups.size() && here == expected,
                    "groups or parameters of a ZeroOptimizer were added or taken away: ",
                    param_groups_.size(), " groups of ", here, " parameters, not ", groups.size(),
                    " of ", expected, "; the function that it was made with makes the groups");
  given_rates_.clear();
  for (size_t k = 0; k < groups.size(); ++k) {
    groups[k].set_options(param_groups_[k].options().clone());
    given_rates_.push_back(rate_of(groups[k]));
  }
}

void ZeroOptimizer::take_rates() {
  const std::vector<torch::optim::OptimizerParamGroup>& groups = optimizer_->param_groups();
  for (size_t k = 0; k < groups.size() && k < param_groups_.size(); ++k) {
    const std::optional<double> rate = rate_of(groups[k]);
    if (rate && rate != given_rates_.at(k) && rate_of(param_groups_[k]) == given_rates_.at(k)) {
      param_groups_[k].options().set_lr(*rate);
    }
  }
}

void ZeroOptimizer::take_options() {
  for (size_t k = 0; k < param_groups_.size(); ++k) {
    param_groups_[k].set_options(optimizer_->param_groups().at(k).options().clone());
    given_rates_.at(k) = rate_of(param_groups_[k]);
  }
}

torch::Tensor ZeroOptimizer::step(LossClosure closure) {
  const World& world = pipe_->world();
  internal::Processes* const processes = world.processes().get();
  internal::in_call(processes, [&] {
    TORCH_CHECK_VALUE(closure == nullptr,
                      "ZeroOptimizer::step takes no closure: call the pipeline's step before it");
    internal::Pipeline* const pipeline = pipe_->pipeline();  // null without layers
    const internal::BetweenRuns between(pipeline);
    // agree() throws, before anything is changed, if not all processes are in this call. The error
    // names two processes whose calls differ.
    if (processes != nullptr) processes->agree(pipe_->call_name("ZeroOptimizer::step"), "");
    if (pipeline != nullptr) {
      internal::agree_after_failed_update(world, pipe_->call_name("ZeroOptimizer::step"), *pipeline,
                                          *pipe_);
    }
    take_rates();
    give_options();
    std::vector<int64_t> owners;
    if (world.replicas() > 1) {
      owners = owners_of_changes(world, parameters_, owners_, first_rates_, rates_of(*this));
    }
    // If one of the replicas throws, the others may have updated their parameters.
    if (pipeline != nullptr) pipeline->set_replicas_may_differ(world.replicas() > 1);
    optimizer_->step();
    if (world.replicas() > 1) internal::share_over_replicas(world, parameters_, owners);
    // If one process has thrown above, all learn it here, before they go on.
    if (processes != nullptr) {
      (void)processes->exchange("the end of " + pipe_->call_name("ZeroOptimizer::step"), "",
                                /*is_patient=*/true);
    }
    if (pipeline != nullptr) pipeline->set_replicas_may_differ(false);
    return true;
  });
  return {};
}

void ZeroOptimizer::save(torch::serialize::OutputArchive& archive) const {
  give_options();
  optimizer_->save(archive);
}

void ZeroOptimizer::load(torch::serialize::InputArchive& archive) {
  optimizer_->load(archive);
  take_options();
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
