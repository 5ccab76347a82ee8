#include "experiments/rows/memory_run.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <numeric>

#include "balance/memory/caching_allocator.h"
#include "experiments/frame/memory_limit.h"
#include "gpipe/gpipe.h"
#include "interception/peak_memory.h"
#include "meta/meta_scope.h"

namespace gpipe::experiments {
namespace {

constexpr int kSteps = 2;

void count_parameters(const torch::nn::Sequential& network, MemoryFigures& figures) {
  for (const at::Tensor& parameter : network->parameters()) {
    figures.parameters += parameter.numel();
    figures.parameter_bytes += parameter.numel() * parameter.element_size();
  }
}

// Returns a function that runs one training step, without the optimizer's. Its argument says
// whether the step is the last one.
std::function<void(bool)> step_of(const MemoryRun& run, torch::nn::Sequential& network,
                                  const at::Tensor& input, const at::Tensor& target,
                                  const RunContext& context, MemoryFigures& figures) {
  const LossFn loss = run.loss();
  if (!run.is_pipeline()) {
    network->to(run.devices.front());
    return [=](bool /*last*/) mutable { loss({network->forward(input)}, {target}).backward(); };
  }
  GPipe pipe(network, run.options());
  figures.routes = pipe->routes();
  const StepOptions options = StepOptions().schedule(run.setup.schedule.make);
  return [=, &context, observer = run.observer](bool last) mutable {
    StepOptions watched = options;
    watched.on_event([&](const Event& event) {
      context.check();
      if (last && observer) observer(event);
    });
    pipe->step({input}, {target}, loss, watched);
  };
}

}  // namespace

int64_t MemoryFigures::total() const {
  return std::accumulate(peaks.begin(), peaks.end(), int64_t{0});
}

MemoryFigures run_memory(const MemoryRun& run, const RunContext& context) {
  MemoryFigures figures;
  const MemoryLimit limit(limit_of_run(run.devices));
  internal::PeakMemory memory(run.devices);
  at::manual_seed(run.seed);
  torch::nn::Sequential network = run.network.model.make();
  count_parameters(network, figures);
  context.check();
  const at::Tensor input = run.input(run.batch_size, run.devices.front());
  const at::Tensor target = run.target(run.batch_size, run.devices.back());
  const std::function<void(bool)> step = step_of(run, network, input, target, context, figures);
  const std::unique_ptr<torch::optim::Optimizer> optimizer = run.optimizer(network->parameters());
  memory.reset(/*gives_back=*/true);
  for (int k = 0; k < kSteps; ++k) {
    context.check();
    step(k + 1 == kSteps);
    optimizer->step();
  }
  figures.peaks = memory.held();
  return figures;
}

PlannedMemory plan_memory(const MemoryRun& run, int64_t capacity, const RunContext& context) {
  PlannedMemory planned;
  const torch::nn::Sequential network = [&run] {
    const MetaScope scope;
    return run.network.model.make();
  }();
  count_parameters(network, planned.figures);
  PipelineSetup setup = run.setup;
  if (setup.balance.empty()) {
    setup.balance = {static_cast<int64_t>(network->size())};
    setup.chunks = 1;
    setup.checkpoint_all(Checkpoint::kNever);
  }
  std::optional<command::Progress> bar;
  balance::MemoryPlanOptions options(setup.balance);
  options.chunks(setup.chunks)
      .shared_inputs(setup.shared_inputs)
      .partition_checkpoints(setup.checkpoints)
      .schedule(setup.schedule.make)
      .ablation(run.whole_ablation())
      .optimizer(run.optimizer)
      .zero_grad(run.zero_grad)
      .capacity(capacity)
      .progress([&](int64_t done, int64_t total) {
        context.check();
        if (!bar && context.progress != nullptr) {
          bar.emplace(*context.progress, run.name + ", planned", total, context.progress_options);
        }
        if (bar) bar->update(done);
      });
  const balance::MemoryPlan plan =
      balance::memory_plan(network, {run.input(run.batch_size, at::kMeta)},
                           {run.target(run.batch_size, at::kMeta)}, run.loss(), options);
  planned.live = plan.total_bytes();
  planned.out_of_memory = plan.total_reserved() < 0;
  std::vector<int64_t>& peaks = planned.figures.peaks;
  if (planned.out_of_memory) {
    peaks = balance::peak_reserved(plan.trace);
  } else {
    for (const balance::DeviceMemory& device : plan.devices) peaks.push_back(device.reserved);
  }
  return planned;
}

}  // namespace gpipe::experiments
