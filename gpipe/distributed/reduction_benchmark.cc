// Measures what the sum over replicas costs a step where other work does not hide it.
//
//   tools/bazel run //gpipe/distributed:reduction_benchmark
//
// Two replicas of a pipeline over two processes, all four on this machine; a process has 16 MiB of
// parameters, in one stage or in two (interleaved). Layers that sleep stand for devices: they leave
// the cores to the processes that add up. Layers that compute show the cost when the cores are
// busy. For each it prints three medians: the time of a step; the time from the last backward of
// all processes until all have returned; and the time that the processes of the last stage wait
// before that after their own last backward.

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/processes/rank_processes.h"
#include "gpipe/testing/processes/world_ranks.h"
#include "gpipe/timing.h"

namespace gpipe::distributed {
namespace {

namespace nn = torch::nn;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kWidth = 1024;
constexpr int64_t kSquares = 4;  // weights of kWidth x kWidth in each process
constexpr int64_t kChunks = 8;
constexpr int64_t kRows = 512;
constexpr int kSteps = 15;
constexpr std::chrono::milliseconds kForward{20};

struct Sleep : torch::autograd::Function<Sleep> {
  static torch::Tensor forward(AutogradContext* context, torch::Tensor x, torch::Tensor weight) {
    std::this_thread::sleep_for(kForward * weight.size(0) / kSquares);
    context->save_for_backward({weight});
    return x * 1;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const torch::Tensor weight = context->get_saved_variables()[0];
    std::this_thread::sleep_for(2 * kForward * weight.size(0) / kSquares);
    return {gradients[0], torch::ones_like(weight)};
  }
};

struct SleeperImpl : nn::Module {
  explicit SleeperImpl(int64_t squares) {
    weight = register_parameter("weight", torch::zeros({squares, kWidth, kWidth}));
  }
  torch::Tensor forward(torch::Tensor x) { return Sleep::apply(x, weight); }
  torch::Tensor weight;
};

nn::Sequential sleepers(int64_t stages) {
  nn::Sequential module;
  for (int64_t stage = 0; stage < stages; ++stage) {
    module->push_back(std::make_shared<SleeperImpl>(2 * kSquares / stages));
  }
  return module;
}

nn::Sequential linears() {
  torch::manual_seed(1);
  nn::Sequential module;
  for (int64_t layer = 0; layer < 2 * kSquares; ++layer) {
    module->push_back(nn::Linear(nn::LinearOptions(kWidth, kWidth).bias(false)));
  }
  return module;
}

// Says, for each step, when it began, when the last action in this process ended, and when step()
// returned.
void train(const World& world, const nn::Sequential& module, int64_t stages,
           const WorldRanks::Say& say) {
  const int64_t layers = static_cast<int64_t>(module->size()) / stages;
  GPipe pipe(module, GPipeOptions(std::vector<int64_t>(static_cast<size_t>(stages), layers))
                         .placement(Placement::loop(2, stages / 2))
                         .chunks(kChunks)
                         .checkpoint(Checkpoint::kNever)
                         .cpu_threads_per_stage(1)
                         .world(world));
  const RowRange rows = world.rows(kRows, kChunks);
  const torch::Tensor x = torch::ones({rows.size(), kWidth});
  for (int step = 0; step <= kSteps; ++step) {
    pipe->zero_grad();
    // All processes take part in this, so they begin the step together.
    (void)pipe->parameter_hash();
    int64_t last = 0;
    const int64_t begin = microseconds_now();
    pipe->step(
        {x}, {torch::zeros_like(x)},
        [](torch::Tensor output, torch::Tensor target) { return torch::mse_loss(output, target); },
        StepOptions().on_event([&](const Event&) { last = microseconds_now(); }));
    std::ostringstream line;
    line << begin << " " << last << " " << microseconds_now();
    // The first step does not count, because the sizes of the messages are learned in it.
    if (step > 0) say(line.str());
  }
}

void measure(const char* what, int64_t stages, const std::function<nn::Sequential()>& make) {
  WorldRanks ranks(4, [&](const World& world, const WorldRanks::Say& say) {
    train(world.grid(2, 2), make(), stages, say);
  });
  std::vector<double> steps;
  std::vector<double> behind;
  std::vector<double> waits;
  for (int step = 0; step < kSteps; ++step) {
    int64_t begin = 0;
    int64_t last = 0;
    int64_t last_of_last_stage = 0;
    int64_t end = 0;
    for (int64_t rank = 0; rank < 4; ++rank) {
      int64_t of_begin = 0;
      int64_t of_last = 0;
      int64_t of_end = 0;
      const std::string line = ranks->next(rank);
      if (!(std::istringstream(line) >> of_begin >> of_last >> of_end)) {
        throw std::runtime_error("rank " + std::to_string(rank) + ": " + line);
      }
      begin = std::max(begin, of_begin);
      last = std::max(last, of_last);
      end = std::max(end, of_end);
      if (rank % 2 == 1) last_of_last_stage = std::max(last_of_last_stage, of_last);
    }
    steps.push_back(static_cast<double>(end - begin) / 1000);
    behind.push_back(static_cast<double>(end - last) / 1000);
    waits.push_back(static_cast<double>(last - last_of_last_stage) / 1000);
  }
  std::printf(
      "%s: a step %.1f ms; behind the last backward %.1f ms, %.1f %%; last stages wait %.1f "
      "ms\n",
      what, median(steps), median(behind), 100 * median(behind) / median(steps), median(waits));
  std::fflush(stdout);  // otherwise the next forked processes would print it, too
}

}  // namespace
}  // namespace gpipe::distributed

int main() {
  using namespace gpipe::distributed;
  measure("layers that sleep", 2, [] { return sleepers(2); });
  measure("layers that sleep, interleaved", 4, [] { return sleepers(4); });
  measure("layers that compute", 2, linears);
  return 0;
}
