#include "gpipe/internal/stage/tied_terms.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/variable.h>

#include "gpipe/internal/cell/leaf_owner.h"
#include "gpipe/internal/model/model_state.h"
#include "text/shown.h"

namespace gpipe::internal {

void TiedTerms::take(const RunContext& run, const Ports& ports, std::vector<Packet>& gradients,
                     LeafSums& sums) const {
  for (size_t k = 0; k < ports.tied_out.size(); ++k) {
    Packet& packet = gradients.at(ports.outputs.size() + k);
    if (packet.items.empty() || !packet.items.front().tensor.defined()) continue;
    const at::Tensor& tied = run.plan.model.used_on(device_, tied_[ports.tied_out[k]]);
    if (!tied.requires_grad()) continue;  // frozen since the forward, so no stage gets its gradient
    at::Tensor& sum = *sums.sum_of(torch::autograd::impl::grad_accumulator(tied),
                                   owner_of(run, stage_, device_, tied, run.plan.model.find(tied)));
    at::Tensor& arrived = packet.items.front().tensor;
    // The sum may have a term already, because a stage between this one and the sender may have the
    // parameter itself, and use it without declaring it.
    const c10::NoGradGuard no_grad;
    sum = sum.defined() ? sum + arrived : std::move(arrived);
  }
  gradients.resize(ports.outputs.size());
}

// Throws c10::ValueError for a sparse gradient of a tied parameter, which no process can send.
void TiedTerms::check_dense(const RunContext& run, const at::Tensor& tied,
                            const at::Tensor& sum) const {
  if (sum.layout() == c10::kStrided) return;
  const ModelState::Parameter* const parameter = run.plan.model.find(tied);
  TORCH_CHECK_VALUE(false, "the gradient of the tied parameter ",
                    text::in_quotes(parameter == nullptr ? "" : parameter->name), " in stage ",
                    stage_, " has layout ", sum.layout(),
                    ", and cannot go to the process that owns the parameter, which takes dense "
                    "ones only. Let the layers that use it give dense gradients (an embedding "
                    "without sparse(true), say), or put the partitions that use it into one "
                    "process");
}

void TiedTerms::send(const RunContext& run, const Ports& ports, std::vector<Packet>& gradients,
                     LeafSums& sums) const {
  gradients.resize(ports.inputs.size());  // a cell without a graph gives no gradients
  for (const size_t number : ports.tied_in) {
    const at::Tensor& tied = run.plan.model.used_on(device_, tied_[number]);
    at::Tensor sum;
    if (tied.requires_grad()) {
      sum = sums.take_sum(torch::autograd::impl::grad_accumulator(tied).get());
    }
    if (over_processes_ && sum.defined()) check_dense(run, tied, sum);
    Packet& packet = gradients.emplace_back();
    if (!sum.defined()) continue;
    packet.items.emplace_back();
    packet.items.back().tensor = std::move(sum);
  }
}

}  // namespace gpipe::internal
