#include "experiments/rows/memory_run.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <numeric>

#include "balance/memory/caching_allocator.h"
#include "experiments/frame/memory_limit.h"
#include "experiments/frame/trainer.h"
#include "gpipe/gpipe.h"
#include "interception/peak_memory.h"
#include "meta/meta_scope.h"

namespace gpipe::experiments {
namespace {

constexpr int kSteps = 2;

LossFn loss_of(const models::NamedModel& network) {
  return [kind = network.loss](const Tensors& outputs, const Tensors& targets) {
    return models::loss_of(kind, outputs.at(0), targets.at(0));
  };
}

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
                                  const std::function<void()>& check, MemoryFigures& figures) {
  const LossFn loss = loss_of(run.network);
  const PipelineSetup& setup = run.setup;
  if (setup.balance.empty()) {
    network->to(run.devices.front());
    return [=](bool /*last*/) mutable { loss({network->forward(input)}, {target}).backward(); };
  }
  GPipe pipe(network, pipeline_options(setup, run.devices));
  figures.routes = pipe->routes();
  const StepOptions options = StepOptions().schedule(setup.schedule.make);
  return [=, observer = run.observer](bool last) mutable {
    StepOptions watched = options;
    watched.on_event([&](const Event& event) {
      check();
      if (last && observer) observer(event);
    });
    pipe->step({input}, {target}, loss, watched);
  };
}

}  // namespace

int64_t MemoryFigures::total() const {
  return std::accumulate(peaks.begin(), peaks.end(), int64_t{0});
}

MemoryFigures run_memory(const MemoryRun& run, const std::function<void()>& check) {
  MemoryFigures figures;
  const MemoryLimit limit(limit_of_run(run.devices));
  internal::PeakMemory memory(run.devices);
  at::manual_seed(run.seed);
  torch::nn::Sequential network = run.network.make();
  count_parameters(network, figures);
  check();
  const at::Tensor input = models::random_input(run.network, run.batch, run.devices.front());
  const at::Tensor target = models::random_target(run.network, run.batch, run.devices.back());
  const std::function<void(bool)> step = step_of(run, network, input, target, check, figures);
  const std::unique_ptr<torch::optim::Optimizer> optimizer = run.optimizer(network->parameters());
  memory.reset(/*gives_back=*/true);
  for (int k = 0; k < kSteps; ++k) {
    check();
    step(k + 1 == kSteps);
    optimizer->step();
  }
  figures.peaks = memory.held();
  return figures;
}

PlannedMemory plan_memory(const MemoryRun& run, int64_t capacity,
                          const std::function<void()>& check) {
  PlannedMemory planned;
  const torch::nn::Sequential network = [&run] {
    const MetaScope scope;
    return run.network.make();
  }();
  count_parameters(network, planned.figures);
  PipelineSetup setup = run.setup;
  if (setup.balance.empty()) {
    setup.balance = {static_cast<int64_t>(network->size())};
    setup.chunks = 1;
    setup.checkpoint_all(Checkpoint::kNever);
  }
  balance::MemoryPlanOptions options(setup.balance);
  options.chunks(setup.chunks)
      .partition_checkpoints(setup.checkpoints)
      .schedule(setup.schedule.make)
      .optimizer(run.optimizer)
      .zero_grad(false)
      .capacity(capacity)
      .progress([&check](int64_t /*done*/, int64_t /*total*/) { check(); });
  const balance::MemoryPlan plan = balance::memory_plan(
      network, {models::random_input(run.network, run.batch, at::kMeta)},
      {models::random_target(run.network, run.batch, at::kMeta)}, loss_of(run.network), options);
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
