// Runs every named schedule with layers that sleep, so that eight workers fit on any number of
// cores.
//
// tools/bazel run //gpipe:schedules_benchmark

#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <benchmark/benchmark.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/internal/backward/node_kinds.h"
#include "gpipe/internal/libtorch/versions.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/schedule/simulate.h"
#include "gpipe/timing.h"

namespace gpipe {
namespace {

constexpr int64_t kWorkers = 8;
constexpr int64_t kMicroBatches = 32;
// The times of a worker's stages together; a whole backward takes as long as its two halves.
constexpr double kForwardMs = 8, kInputMs = 8, kWeightMs = 8;

void sleep_for(double ms) {
  std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms));
}

// The node of an identity whose backward takes a while. It is an OperatorNode, not a custom
// function: users' code is never deferred to the weights' half of a backward.
struct SleepNode : internal::OperatorNode {
  explicit SleepNode(double ms) : ms(ms) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    sleep_for(ms);
    return {gradients[0]};
  }
  double ms;
};

at::Tensor slow_backward(const at::Tensor& x, double ms) {
  at::Tensor result = x.detach().clone();
  if (!c10::GradMode::is_enabled() || !x.requires_grad()) return result;
  const auto node = internal::make_node<SleepNode>(ms);
  node->set_next_edges(torch::autograd::collect_next_edges(x));
  torch::autograd::create_gradient_edge(result, node);
  return result;
}

// A layer that returns x + w. The gradients of x and of w each take a while.
struct SleepImpl : torch::nn::Module {
  explicit SleepImpl(double share) : share(share) { w = register_parameter("w", at::zeros({2})); }
  at::Tensor forward(const at::Tensor& x) {
    sleep_for(share * kForwardMs);
    return slow_backward(x, share * kInputMs) + slow_backward(w, share * kWeightMs);
  }
  double share;
  at::Tensor w;
};
TORCH_MODULE(Sleep);

// How long the actions of each kind took, on average.
class MeanCosts {
 public:
  Observer observer() {
    return [this](const Event& event) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (event.edge == Event::Edge::kBegin) {
        begun_[event.worker] = event.time;
        return;
      }
      Sum& sum = sums_[static_cast<size_t>(event.action.kind)];
      sum.seconds += std::chrono::duration<double>(event.time - begun_[event.worker]).count();
      ++sum.count;
    };
  }
  StageCost costs() const {
    const auto mean = [this](ActionKind kind) {
      const Sum& sum = sums_[static_cast<size_t>(kind)];
      return sum.count == 0 ? 0 : sum.seconds / sum.count;
    };
    return {mean(ActionKind::kForward), mean(ActionKind::kBackward),
            mean(ActionKind::kInputGradient), mean(ActionKind::kWeightGradient)};
  }

 private:
  struct Sum {
    double seconds = 0;
    int64_t count = 0;
  };
  std::mutex mutex_;
  std::map<int64_t, Event::Time> begun_;  // worker -> the begin of its action
  std::array<Sum, 4> sums_;
};

// `of_predicted`: the time of a step, divided by the time that a simulation of the same schedule
// gives with the mean time that the actions of each kind really took. `bubble`: the share of the
// time, in percent, in which the workers did not sleep in an action, by the sleeps as requested.
void BM_Schedule(benchmark::State& state, const NamedSchedule& named) {
  at::set_num_threads(1);
  const bool one_each = named.shape == PlacementShape::kOneEach;
  const int64_t stages =
      one_each || named.shape == PlacementShape::kOneWorker ? kWorkers : 2 * kWorkers;
  const Placement placement = placement_by_name(named.name, stages);
  const double share = static_cast<double>(kWorkers) / static_cast<double>(stages);
  torch::nn::Sequential model;
  for (int64_t stage = 0; stage < stages; ++stage) model->push_back(Sleep(share));
  GPipe pipe(model, GPipeOptions(std::vector<int64_t>(static_cast<size_t>(stages), 1))
                        .devices(std::vector<c10::Device>(static_cast<size_t>(stages),
                                                          c10::Device(c10::kCPU)))
                        .chunks(kMicroBatches)
                        .checkpoint(Checkpoint::kNever)
                        .placement(placement));
  const Schedule schedule = schedule_by_name(named.name, stages, kMicroBatches);
  const at::Tensor input = at::randn({kMicroBatches, 2}).requires_grad_();
  const auto run = [&](const Observer& observer) {
    pipe->step(
        {input}, {}, [](const Tensors& outputs, const Tensors&) { return outputs[0].sum(); },
        StepOptions().schedule(schedule).on_event(observer));
  };
  run(nullptr);
  MeanCosts mean;
  std::vector<double> times;
  for (auto _ : state) {
    times.push_back(seconds_of([&] { run(mean.observer()); }));
    state.SetIterationTime(times.back());
  }
  SimulateOptions options;
  options.action = uniform_cost(mean.costs());
  const double predicted = simulate(schedule, options).makespan;
  const double time = median(times);
  const double slept = 1e-3 * kMicroBatches * (kForwardMs + kInputMs + kWeightMs) *
                       static_cast<double>(kWorkers) / static_cast<double>(placement.workers());
  state.counters["predicted_ms"] = 1e3 * predicted;
  state.counters["of_predicted"] = time / predicted;
  state.counters["bubble"] = 100 * (1 - slept / time);
}

const bool registered = [] {
  for (const NamedSchedule& named : named_schedules()) {
    benchmark::RegisterBenchmark(("BM_Schedule/" + named.name).c_str(),
                                 [named](benchmark::State& state) { BM_Schedule(state, named); })
        ->UseManualTime()
        ->Iterations(named.shape == PlacementShape::kOneWorker ? 1 : 5)
        ->Unit(benchmark::kMillisecond);
  }
  return true;
}();

}  // namespace
}  // namespace gpipe
