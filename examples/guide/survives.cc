// The program of chapter 40: a run that goes on when processes die.
//
//   launch --processes=4 --restarts=5 -- survives [STEPS [EVERY [LAYOUT [CHECKPOINT]]]]
//
// LAYOUT: pipeline (one over all processes), replicas (two; if the processes are an odd number, one
// waits as a spare), or zero (as many as divide four and the number of processes: four processes
// are four replicas, three are one, and two are two).

#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/resilient/resilient_run.h"
#include "gpipe/zero_optimizer.h"

namespace {

namespace nn = torch::nn;

constexpr int64_t kBlocks = 4;  // of three layers each
constexpr int64_t kRows = 16;
// For a longer step, the environment may give another width.
const int64_t kWidth =
    std::getenv("SURVIVES_WIDTH") == nullptr ? 32 : std::atoll(std::getenv("SURVIVES_WIDTH"));

nn::Sequential make_model() {
  torch::manual_seed(1);
  nn::Sequential model;
  for (int64_t block = 0; block < kBlocks; ++block) {
    model->push_back(nn::Linear(kWidth, kWidth));
    model->push_back(nn::Tanh());
    model->push_back(nn::Dropout(0.1));
  }
  return model;
}

std::vector<int64_t> even_balance(int64_t stages) {
  std::vector<int64_t> balance;
  for (int64_t stage = 0; stage < stages; ++stage) {
    const int64_t begin = kBlocks * stage / stages, end = kBlocks * (stage + 1) / stages;
    balance.push_back(3 * (end - begin));
  }
  return balance;
}

// The loss as text with all of its bits.
std::string exact(double number) {
  char digits[40];
  std::snprintf(digits, sizeof digits, "%a", number);
  return digits;
}

at::Tensor rows_of(int64_t step) {
  return torch::linspace(-1, 1 + 0.01 * static_cast<double>(step), kRows * kWidth)
      .reshape({kRows, kWidth});
}

// The device of this process: the CPU, unless the environment names another type, as "cuda".
torch::Device device_of(const gpipe::World& world) {
  const char* const type = std::getenv("SURVIVES_DEVICE");
  if (type == nullptr) return torch::kCPU;
  return {torch::Device(type).type(), static_cast<c10::DeviceIndex>(world.local_rank())};
}

at::Tensor loss_fn(at::Tensor output, at::Tensor target) { return torch::mse_loss(output, target); }

void train(const gpipe::ResilientOptions& options, int64_t replicas) {
  const auto begin = std::chrono::steady_clock::now();
  // [survives]
  // #include "gpipe/resilient/resilient_run.h"
  // #include "gpipe/zero_optimizer.h"
  gpipe::ResilientRun run(options);
  run.run(
      [&](const gpipe::World& met) {  // once for each world
        const gpipe::World world = gpipe::as_replicas(met, replicas);
        gpipe::ResilientParts parts;
        parts.pipe =
            gpipe::GPipe(make_model(), gpipe::GPipeOptions(even_balance(world.processes_each()))
                                           .devices({device_of(world)})
                                           .chunks(8)
                                           .groups(4)
                                           .cpu_threads_per_stage(1)
                                           .world(world));
        parts.optimizer = std::make_shared<gpipe::ZeroOptimizer>(
            parts.pipe, [](std::vector<torch::Tensor> parameters) {
              return std::make_unique<torch::optim::AdamW>(std::move(parameters), 1e-3);
            });
        return parts;
      },
      [&](gpipe::ResilientParts& parts, int64_t step) {  // again for a step that is repeated
        const gpipe::RowRange here = parts.pipe->world().rows(kRows, parts.pipe->chunks());
        const torch::Tensor rows =
            rows_of(step).slice(0, here.begin, here.end).to(parts.pipe->devices().front());
        parts.optimizer->zero_grad();
        const double loss = parts.pipe->step({rows}, {rows}, loss_fn).loss;
        parts.optimizer->step();
        run.log("step " + std::to_string(step) + " loss " + exact(loss));
      },
      [&](gpipe::ResilientParts& parts, int64_t) {
        run.log("parameters " + parts.pipe->parameter_hash());
      });
  // [/survives]
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const gpipe::ResilientCounts& counts = run.counts();
  std::cerr << "counts: recoveries " << counts.recoveries << ", repeated steps "
            << counts.repeated_steps << ", recovery seconds " << counts.recovery_seconds
            << ", snapshots " << counts.snapshots << ", snapshot seconds "
            << counts.snapshot_seconds << ", snapshot bytes " << counts.snapshot_bytes
            << ", planned bytes " << counts.planned_bytes << ", all seconds " << took.count()
            << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  const auto given = [&](int index, const char* otherwise) {
    return std::string(argc > index ? argv[index] : otherwise);
  };
  try {
    torch::set_num_threads(1);
    std::cerr << "pid " << getpid() << std::endl;
    gpipe::ResilientOptions options;
    options.steps = std::stoll(given(1, "200"));
    options.snapshot_every = std::stoll(given(2, "10"));
    options.path = given(4, "");
    options.save_every = 25;
    const std::string layout = given(3, "pipeline");
    if (layout == "replicas") options.multiple_of = 2;
    train(options, layout == "zero" ? 4 : layout == "replicas" ? 2 : 1);
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
  return 0;
}
