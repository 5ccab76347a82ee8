// How much of the copies between devices, and between a device and the host, overlaps with
// computation, on the fake accelerator: kernels and copies take simulated times, streams and events
// are as on GPUs.
//
//   tools/bazel run //gpipe:overlap_benchmark

#include <benchmark/benchmark.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule/offloads.h"
#include "gpipe/schedule/routes.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/simulate.h"
#include "gpipe/testing/fake_accelerator/backend.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/timing.h"

namespace gpipe {
namespace {

using testing::fake::Durations;

// Four stages of one kernel each, forward and backward; a copy takes an eighth of a kernel's time.
// `hidden`: the share of a stage's copying time that does not lengthen the step. Filling and
// draining the pipeline cannot hide their copies: 6 in all, where a stage has 1.5 per micro-batch.
void BM_Overlap(benchmark::State& state) {
  constexpr std::chrono::microseconds kKernel(4000);
  constexpr std::chrono::microseconds kCopy = kKernel / 8;
  constexpr int64_t kStages = 4;
  const int64_t micro_batches = state.range(0);
  std::vector<c10::Device> devices;
  torch::nn::Sequential model;
  for (int64_t j = 0; j < kStages; ++j) {
    devices.push_back(testing::fake::device(static_cast<int>(j)));
    model->push_back(testing::layer<at::Tensor, at::Tensor>([](at::Tensor x) { return x * 2; }));
  }
  GPipe pipe(model, GPipeOptions(std::vector<int64_t>(kStages, 1))
                        .devices(devices)
                        .chunks(micro_batches)
                        .checkpoint(Checkpoint::kNever));
  const at::Tensor input = torch::ones({micro_batches, 8}, devices.front()).requires_grad_();
  const at::Tensor gradient = torch::ones({micro_batches, 8}, devices.back());
  auto step_with = [&](std::chrono::microseconds copy) {
    Durations durations;
    durations.kernel = kKernel;
    durations.copy = copy;
    testing::fake::runtime().drain();
    testing::fake::runtime().set_durations(durations);
    const double seconds = seconds_of([&] {
      pipe->forward(input).backward(gradient);
      testing::fake::runtime().drain();
    });
    testing::fake::runtime().set_durations({});
    input.mutable_grad() = at::Tensor();
    return seconds;
  };
  step_with(kCopy);
  std::vector<double> hidden;
  std::vector<double> times;
  const double copying = std::chrono::duration<double>(kCopy).count() * 2 * (kStages - 1) *
                         static_cast<double>(micro_batches) / kStages;
  for (auto _ : state) {
    const double without = step_with(std::chrono::microseconds(0));
    const double with = step_with(kCopy);
    state.SetIterationTime(with);
    hidden.push_back(1 - (with - without) / copying);
    times.push_back(with);
  }
  state.counters["hidden"] = median(hidden);
  state.counters["step_ms"] = median(times) * 1e3;
  // Ideally, the forward and the backward each take a kernel for each micro-batch and for each
  // other stage, and a copy for each other stage.
  const double kernel_ms = std::chrono::duration<double>(kKernel).count() * 1e3;
  state.counters["ideal_ms"] = 2 * (static_cast<double>(micro_batches + kStages - 1) * kernel_ms +
                                    (kStages - 1) * kernel_ms / 8);
}
BENCHMARK(BM_Overlap)
    ->ArgName("micro_batches")
    ->Arg(128)
    ->UseManualTime()
    ->Iterations(15)
    ->Unit(benchmark::kMillisecond);

// Seconds of copies that do not run on the stream `stage`, and of these the ones during which
// `stage` computes. They are told by spans and not by the times of steps: where threads wait for a
// core, steps differ by more than their copies take.
struct Copying {
  double all = 0.0;
  double hidden = 0.0;
};
Copying copying_beside(testing::fake::StreamId stage,
                       const std::vector<testing::fake::Span>& spans) {
  using Seconds = std::chrono::duration<double>;
  Copying copying;
  for (const testing::fake::Span& copy : spans) {
    if (copy.stream == stage) continue;
    copying.all += Seconds(copy.end - copy.begin).count();
    for (const testing::fake::Span& kernel : spans) {
      if (kernel.stream != stage) continue;
      const auto begin = std::max(copy.begin, kernel.begin);
      copying.hidden += std::max(0.0, Seconds(std::min(copy.end, kernel.end) - begin).count());
    }
  }
  return copying;
}

// A stage whose cells go to the host and come back where, by the simulation, no action waits for
// their copies: a cell keeps three storages. `hidden`: the share of the copying time during which
// the stage computes.
void BM_Offloads(benchmark::State& state) {
  constexpr std::chrono::microseconds kKernel(4000);
  constexpr int64_t kLayers = 4;
  constexpr int64_t kCopies = kLayers - 1;  // the stage's output stays
  constexpr int64_t kSide = 128;            // of a micro-batch: smaller storages would stay
  const int64_t micro_batches = state.range(0);
  const auto copy_per_kernel = static_cast<double>(state.range(1)) / 100.0;

  SimulateOptions costs;  // in kernels
  // The loss has two in the forward and one in the backward.
  costs.action = uniform_cost({kLayers + 2, kLayers + 1, 0, 0});
  costs.offload.bytes = [&](const Action&) { return kCopies * copy_per_kernel; };
  costs.offload.to_host = costs.offload.to_device = 1.0;
  const Schedule schedule =
      with_offloads(Schedule::gpipe(1, micro_batches), Routes::create(1), costs);
  const Simulation planned = simulate(schedule, costs);

  torch::nn::Sequential model;
  for (int64_t k = 0; k < kLayers; ++k) {
    model->push_back(testing::layer<at::Tensor, at::Tensor>([](at::Tensor x) { return x.tanh(); }));
  }
  const c10::Device device = testing::fake::device(0);
  GPipe pipe(model, GPipeOptions({kLayers})
                        .devices({device})
                        .chunks(micro_batches)
                        .checkpoint(Checkpoint::kNever));
  const at::Tensor input = torch::ones({micro_batches * kSide, kSide}, device).requires_grad_();
  const LossFn loss = [](const Tensors& outputs, const Tensors&) { return outputs.at(0).mean(); };
  testing::fake::Runtime& runtime = testing::fake::runtime();
  const auto step = [&] {
    pipe->step({input}, {}, loss, StepOptions().schedule(schedule));
    input.mutable_grad() = at::Tensor();
    runtime.drain();
  };
  step();  // what a stage's first cell makes stays
  Durations durations;
  durations.kernel = kKernel;
  durations.copy = kKernel * state.range(1) / 100;
  runtime.set_durations(durations);
  runtime.set_tracing(true);
  std::vector<double> hidden, times, copying;
  for (auto _ : state) {
    times.push_back(seconds_of(step));
    state.SetIterationTime(times.back());
    const Copying spent = copying_beside({0, 0}, runtime.take_spans());
    hidden.push_back(spent.hidden / spent.all);
    copying.push_back(spent.all);
  }
  runtime.set_tracing(false);
  runtime.set_durations({});
  state.counters["hidden"] = median(hidden);
  state.counters["copying_ms"] = median(copying) * 1e3;
  state.counters["step_ms"] = median(times) * 1e3;
  const double kernel_ms = std::chrono::duration<double>(kKernel).count() * 1e3;
  state.counters["planned_ms"] = planned.makespan * kernel_ms;
  state.counters["planned_wait_ms"] = planned.reload_waits.front() * kernel_ms;
}
BENCHMARK(BM_Offloads)
    ->ArgNames({"micro_batches", "copy_percent"})
    ->Args({16, 75})
    ->Args({16, 150})
    ->UseManualTime()
    ->Iterations(9)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace gpipe
