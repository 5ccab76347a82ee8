// Compares the sum of profiled layers with the plain model's forward and backward, on one thread.
//
//   tools/bazel run //balance/costs:profiler_benchmark
//
// `profiled` and `plain` are milliseconds, the least of several passes that alternate within one
// run. `ratio` is profiled / plain. `overhead_us` is their difference for each layer.
#include <ATen/Parallel.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <benchmark/benchmark.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <ctime>
#include <vector>

#include "balance/costs/profiler.h"
#include "models/resnet.h"
#include "models/unet.h"
#include "skip/tracker.h"

namespace gpipe::balance {
namespace {

using torch::nn::Sequential;

double least(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

double plain_pass(Sequential& model, const at::Tensor& sample) {
  const std::clock_t start = std::clock();
  const skip::Scope skips;
  const at::Tensor output = model->forward(sample);
  output.backward(at::ones_like(output));
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

void compare(benchmark::State& state, Sequential model, const at::Tensor& sample) {
  at::set_num_threads(1);
  model->train();
  std::vector<double> plain;
  std::vector<double> profiled;
  plain_pass(model, sample);
  for (auto _ : state) {
    for (int round = 0; round < 10; ++round) {
      for (int pass = 0; pass < 3; ++pass) plain.push_back(plain_pass(model, sample));
      double sum = 0;
      for (const LayerTimes& layer : profile_times(model, sample, TimeOptions().timeout(1e-9))) {
        sum += layer.forward + layer.backward;
      }
      profiled.push_back(sum);
    }
  }
  const double difference = least(profiled) - least(plain);
  state.counters["profiled"] = least(profiled) * 1e3;
  state.counters["plain"] = least(plain) * 1e3;
  state.counters["ratio"] = least(profiled) / least(plain);
  state.counters["overhead_us"] = difference * 1e6 / static_cast<double>(model->size());
}

void BM_UNet(benchmark::State& state) {
  compare(state, models::unet(models::UNetOptions().depth(3).num_convs(2).base_channels(16)),
          at::rand({4, 3, 64, 64}));
}
BENCHMARK(BM_UNet)->Iterations(1)->Unit(benchmark::kMillisecond);

void BM_ResNet(benchmark::State& state) {
  compare(state, models::resnet(models::ResNetOptions({1, 1, 1, 1})), at::rand({4, 3, 64, 64}));
}
BENCHMARK(BM_ResNet)->Iterations(1)->Unit(benchmark::kMillisecond);

void BM_ThousandSmallLayers(benchmark::State& state) {
  Sequential model;
  for (int k = 0; k < 500; ++k) {
    model->push_back(torch::nn::Linear(8, 8));
    model->push_back(torch::nn::Tanh());
  }
  compare(state, model, at::rand({4, 8}));
}
BENCHMARK(BM_ThousandSmallLayers)->Iterations(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace gpipe::balance
