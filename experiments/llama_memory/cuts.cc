#include "experiments/llama_memory/cuts.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "balance/choose/corrected_limits.h"
#include "balance/choose/fitting_cut.h"
#include "balance/costs/flops.h"
#include "balance/costs/profile.h"
#include "balance/memory/optimizer_flag.h"
#include "balance/step/explain.h"
#include "meta/meta_scope.h"
#include "models/transformer.h"

namespace gpipe::experiments {
namespace {

// Memory holds each parameter, its gradient, and AdamW's two moments.
constexpr double kCopiesOfParameters = 4;

// A device that is roughly an H100. Only the ratio of its two speeds matters.
balance::NominalDevice nominal_device() {
  balance::NominalDevice device;
  device.flops_per_second = 400e12;
  device.bytes_per_second = 2.5e12;
  return device;
}

torch::nn::Sequential make(const LlamaCase& llama_case) {
  const MetaScope scope;
  torch::nn::Sequential model = models::transformer(llama_case.model);
  model->to(llama_case.type);
  return model;
}

at::Tensor ids(int64_t rows, int64_t tokens) {
  return at::empty({rows, tokens}, at::TensorOptions(at::kLong).device(at::kMeta));
}

at::Tensor loss(const Tensors& outputs, const Tensors& targets) {
  return at::cross_entropy_loss(outputs.at(0).flatten(0, 1).to(at::kFloat),
                                targets.at(0).flatten());
}

balance::ExplainOptions explain_options(const LlamaCase& llama_case) {
  balance::ExplainOptions options;
  options.chunks = llama_case.rows;
  options.checkpoint = llama_case.checkpoint;
  options.param_scale = kCopiesOfParameters;
  return options;
}

// A model and its profile, for planning several cuts.
class CutPlanner {
 public:
  CutPlanner(LlamaCase llama_case, RunContext context)
      : llama_case_(std::move(llama_case)),
        context_(std::move(context)),
        model_(make(llama_case_)),
        profile_(balance::profile_on_meta(model_, {ids(1, llama_case_.tokens)}, nominal_device())) {
  }

  const balance::Profile& profile() const { return profile_; }

  balance::Explanation predict(const std::vector<int64_t>& balance) const {
    return balance::explain(profile_, balance, explain_options(llama_case_));
  }

  PlannedCut plan(const std::vector<int64_t>& balance) const {
    const at::Tensor tokens = ids(llama_case_.rows, llama_case_.tokens);
    return {balance,
            balance::memory_plan(model_, {tokens}, {tokens}, &loss,
                                 balance::MemoryPlanOptions(balance)
                                     .chunks(llama_case_.rows)
                                     .checkpoint(llama_case_.checkpoint)
                                     .optimizer(balance::parse_optimizer("adamw"))
                                     .progress([&](int64_t, int64_t) { context_.check(); })),
            predict(balance).step};
  }

 private:
  LlamaCase llama_case_;
  RunContext context_;
  torch::nn::Sequential model_;
  balance::Profile profile_;
};

}  // namespace

int64_t PlannedCut::fullest() const {
  int64_t most = 0;
  for (const balance::DeviceMemory& device : plan.devices) {
    most = std::max(most, device.peak.bytes);
  }
  return most;
}

std::vector<int64_t> even_balance(int64_t blocks, int64_t devices) {
  TORCH_CHECK_VALUE(devices >= 1 && blocks >= devices && blocks % devices == 0, blocks,
                    " blocks cannot be cut evenly over ", devices,
                    " devices; give a number of devices that divides them");
  std::vector<int64_t> balance(static_cast<size_t>(devices), 2 * blocks / devices);
  balance.front() += 1;
  balance.back() += 2;
  return balance;
}

PlannedCut plan_cut(const LlamaCase& llama_case, const std::vector<int64_t>& balance,
                    const RunContext& context) {
  return CutPlanner(llama_case, context).plan(balance);
}

double predicted_step(const LlamaCase& llama_case, const std::vector<int64_t>& balance) {
  return CutPlanner(llama_case, {}).predict(balance).step;
}

PlannedCut exact_cut(const LlamaCase& llama_case, const RunContext& context) {
  const int64_t layers = 2 * llama_case.model.num_layers() + 3;
  TORCH_CHECK_VALUE(llama_case.devices >= 1 && llama_case.devices <= layers, "a model of ", layers,
                    " layers cannot be cut over ", llama_case.devices, " devices");
  const CutPlanner planner(llama_case, context);
  balance::FittingCutOptions options;
  options.limits.assign(static_cast<size_t>(llama_case.devices), 0);
  options.explain = explain_options(llama_case);
  std::optional<PlannedCut> best;
  balance::correct_smallest_cut(
      planner.profile(), options, balance::kMostPlans,
      [&](const balance::Explanation& predicted, const std::vector<int64_t>& /*limits*/) {
        PlannedCut planned = planner.plan(predicted.balance());
        std::vector<balance::PredictionError> errors;
        for (size_t d = 0; d < planned.plan.devices.size(); ++d) {
          const int64_t held = planned.plan.devices[d].peak.bytes;
          errors.push_back({d, held - predicted.partitions[d].memory});
        }
        if (!best || planned.fullest() < best->fullest()) best = std::move(planned);
        return balance::PredictionErrors(std::move(errors));
      });
  return *std::move(best);
}

}  // namespace gpipe::experiments
