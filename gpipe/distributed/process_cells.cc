// Prints what a cell costs over processes: one micro-batch in one stage, forward and backward, with
// a stage in each process. For tools/peers/compare_processes.py.
//
//   bazel-bin/gpipe/distributed/launch --processes=4 -- bazel-bin/gpipe/distributed/process_cells

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <iostream>
#include <vector>

#include "gpipe/gpipe.h"

namespace {

constexpr int64_t kRows = 4;  // per micro-batch
constexpr int64_t kWidth = 8;
constexpr int64_t kMicroBatches = 32;
constexpr int kSteps = 60;
constexpr int kWarmUp = 10;

double microseconds_per_cell() {
  const auto world = gpipe::World::from_environment();
  torch::nn::Sequential model;
  for (int64_t stage = 0; stage < world.size(); ++stage) {
    model->push_back(torch::nn::Linear(kWidth, kWidth));
  }
  gpipe::GPipe pipe(model,
                    gpipe::GPipeOptions(std::vector<int64_t>(static_cast<size_t>(world.size()), 1))
                        .chunks(kMicroBatches)
                        .checkpoint(gpipe::Checkpoint::kNever)
                        .world(world));
  const torch::Tensor batch = torch::randn({kRows * kMicroBatches, kWidth});
  std::vector<double> times;
  for (int step = 0; step < kSteps; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    pipe->step({batch}, {}, [](const gpipe::Tensors& outputs, const gpipe::Tensors&) {
      return outputs[0].mean();
    });
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    if (step >= kWarmUp) times.push_back(took.count());
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2] / static_cast<double>(world.size() * kMicroBatches);
}

}  // namespace

int main() {
  try {
    std::cout << microseconds_per_cell() << std::endl;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
  return 0;
}
