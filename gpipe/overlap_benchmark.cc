// How much of the copies between devices overlaps with computation, on the fake accelerator:
// kernels and copies take simulated times, streams and events are as on GPUs.
//
//   tools/bazel run //gpipe:overlap_benchmark

#include <benchmark/benchmark.h>
#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "gpipe/gpipe.h"
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

}  // namespace
}  // namespace gpipe
