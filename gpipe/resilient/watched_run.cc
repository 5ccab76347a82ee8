// The program of run_picture.py and cut_line_test.sh: a ResilientRun that says what each process
// does, and when.
//
//   launch --processes=4 --restarts=3 -- watched_run STEPS EVERY SILENCE_SECONDS [CHECKPOINT [MS]]
//
// It pauses for MS milliseconds after each step. Lines "event NAME VALUE at SECONDS" go to the
// standard error. The clock is CLOCK_MONOTONIC, which all processes of a machine share.

#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/resilient/meet_again.h"
#include "gpipe/resilient/resilient_run.h"

namespace {

constexpr int64_t kBlocks = 4;  // of three layers each
constexpr int64_t kWidth = 512, kRows = 128;

void event(const char* name, int64_t value) {
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  std::fprintf(stderr, "event %s %lld at %.6f\n", name, static_cast<long long>(value), seconds);
}

torch::nn::Sequential make_model() {
  torch::manual_seed(1);
  torch::nn::Sequential model;
  for (int64_t block = 0; block < kBlocks; ++block) {
    model->push_back(torch::nn::Linear(kWidth, kWidth));
    model->push_back(torch::nn::Tanh());
    model->push_back(torch::nn::Dropout(0.1));
  }
  return model;
}

gpipe::ResilientParts make(const gpipe::World& world) {
  event("makes", world.rank());
  std::vector<int64_t> balance;
  for (int64_t stage = 0; stage < world.size(); ++stage) {
    const int64_t begin = kBlocks * stage / world.size();
    balance.push_back(3 * (kBlocks * (stage + 1) / world.size() - begin));
  }
  gpipe::ResilientParts parts;
  parts.pipe = gpipe::GPipe(
      make_model(),
      gpipe::GPipeOptions(balance).chunks(8).groups(1).cpu_threads_per_stage(1).world(world));
  parts.optimizer = std::make_shared<torch::optim::SGD>(
      parts.pipe->local_parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  return parts;
}

void run(const gpipe::ResilientOptions& options, std::chrono::milliseconds pause) {
  gpipe::ResilientRun run(options);
  const auto step_once = [&](gpipe::ResilientParts& parts, int64_t step) {
    const torch::Tensor rows =
        torch::linspace(-1, 1 + 0.01 * static_cast<double>(step), kRows * kWidth)
            .reshape({kRows, kWidth});
    parts.optimizer->zero_grad();
    const double loss = parts.pipe
                            ->step({rows}, {rows},
                                   [](at::Tensor output, at::Tensor target) {
                                     return torch::mse_loss(output, target);
                                   })
                            .loss;
    parts.optimizer->step();
    char digits[40];
    std::snprintf(digits, sizeof digits, "%a", loss);
    run.log("step " + std::to_string(step) + " loss " + digits);
  };
  run.run(
      make,
      [&](gpipe::ResilientParts& parts, int64_t step) {
        event("begins", step);
        try {
          step_once(parts, step);
        } catch (...) {
          event("fails", step);
          throw;
        }
        event("ends", step);
        std::this_thread::sleep_for(pause);
      },
      [&](gpipe::ResilientParts& parts, int64_t) {
        run.log("parameters " + parts.pipe->parameter_hash());
      });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  event("starts", getpid());
  try {
    torch::set_num_threads(1);
    gpipe::ResilientOptions options;
    options.steps = std::stoll(argv[1]);
    options.snapshot_every = std::stoll(argv[2]);
    options.world.silence_limit = std::chrono::seconds(std::stoll(argv[3]));
    options.path = argc > 4 ? argv[4] : "";
    run(options, std::chrono::milliseconds(argc > 5 ? std::stoll(argv[5]) : 0));
  } catch (const gpipe::WorldIsOver& over) {
    std::cerr << "over: " << over.what() << std::endl;
    return 3;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
  return 0;
}
