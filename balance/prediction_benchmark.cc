// Compares predicted with measured steps: small networks in two partitions on this machine's CPU,
// one thread each.
//   prediction_benchmark [ROUNDS]
// Every round profiles, cuts, predicts and measures, so that what else the machine does meanwhile
// meets both. Prints the medians.

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/rand.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "balance/contention.h"
#include "balance/explain.h"
#include "balance/profiler.h"
#include "gpipe/gpipe.h"
#include "gpipe/internal/cpu_threads.h"
#include "models/amoebanetd.h"
#include "models/resnet.h"
#include "models/unet.h"

namespace gpipe::balance {
namespace {

constexpr int64_t kPartitions = 2;
constexpr int64_t kChunks = 8;
constexpr double kProfileSeconds = 1.0;
constexpr double kStepSeconds = 1.5;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Network {
  std::string name;
  std::function<torch::nn::Sequential()> make;
  std::vector<int64_t> shape;  // of a micro-batch
};

struct Run {
  std::string checkpoint;
  Checkpoint mode;
  std::string schedule_name;
  ScheduleGenerator schedule;
};

at::Tensor loss(const Tensors& outputs, const Tensors&) { return outputs[0].mean(); }

// A forward and a backward of a copy of the model, with one thread per operator.
std::function<void()> plain_pass(const Network& network) {
  torch::nn::Sequential model = network.make();
  const at::Tensor input = at::rand(network.shape);
  return [model, input]() mutable {
    internal::set_threads_of_this_thread(1);
    model->forward(input).mean().backward();
  };
}

// The median time of a step, in seconds.
double measured_step(const Network& network, const std::vector<int64_t>& balance, const Run& run) {
  GPipe pipe(network.make(), GPipeOptions(balance)
                                 .devices(std::vector<c10::Device>(kPartitions, c10::kCPU))
                                 .chunks(kChunks)
                                 .checkpoint(run.mode)
                                 .cpu_threads_per_stage(1));
  std::vector<int64_t> shape = network.shape;
  shape[0] *= kChunks;
  const at::Tensor input = at::rand(shape);
  const auto step = [&] { pipe->step({input}, {}, loss, StepOptions().schedule(run.schedule)); };
  step();
  std::vector<double> times;
  for (const double begin = now(); times.size() < 3 || now() - begin < kStepSeconds;) {
    const double start = now();
    step();
    times.push_back(now() - start);
  }
  return median(times);
}

struct Figures {
  std::vector<double> plain, contended, measured, ratio, contended_ratio;
};

void compare(const Network& network, const std::vector<Run>& runs, int64_t rounds) {
  std::vector<Figures> figures(runs.size());
  std::vector<double> contentions;
  std::vector<int64_t> balance;
  for (int64_t round = 0; round < rounds; ++round) {
    at::manual_seed(0);
    const torch::nn::Sequential model = network.make();
    const Profile measured = profile(model, at::rand(network.shape),
                                     ProfileOptions().timeout(kProfileSeconds).cpu_threads(1));
    ContentionOptions seconds;
    seconds.seconds = kProfileSeconds / 2;
    const double contention =
        measure_contention(plain_pass(network), {plain_pass(network)}, seconds);
    contentions.push_back(contention);
    for (size_t k = 0; k < runs.size(); ++k) {
      ExplainOptions options;
      options.chunks = kChunks;
      options.checkpoint = runs[k].mode;
      options.schedule = runs[k].schedule;
      // One cut for all rounds, or every round would compare another pipeline.
      if (balance.empty()) balance = best_balance(measured, kPartitions, options);
      Figures& of = figures[k];
      of.plain.push_back(explain(measured, balance, options).step);
      options.contention = contention;
      of.contended.push_back(explain(measured, balance, options).step);
      of.measured.push_back(measured_step(network, balance, runs[k]));
      of.ratio.push_back(of.plain.back() / of.measured.back());
      of.contended_ratio.push_back(of.contended.back() / of.measured.back());
    }
  }
  std::printf("%s, balance %s, contention %.2f\n", network.name.c_str(),
              absl::StrJoin(balance, ",").c_str(), median(contentions));
  for (size_t k = 0; k < runs.size(); ++k) {
    const Figures& of = figures[k];
    std::printf(
        "  %-12s %-6s predicted %7.1f ms (%7.1f with contention), measured %7.1f ms, "
        "ratio %.2f (%.2f)\n",
        runs[k].checkpoint.c_str(), runs[k].schedule_name.c_str(), 1e3 * median(of.plain),
        1e3 * median(of.contended), 1e3 * median(of.measured), median(of.ratio),
        median(of.contended_ratio));
  }
  std::fflush(stdout);
}

void compare_all(int64_t rounds) {
  const std::vector<Run> runs = {
      {"never", Checkpoint::kNever, "1f1b", Schedule::one_f_one_b},
      {"never", Checkpoint::kNever, "gpipe", Schedule::gpipe},
      {"except_last", Checkpoint::kExceptLast, "1f1b", Schedule::one_f_one_b},
      {"always", Checkpoint::kAlways, "gpipe", Schedule::gpipe},
  };
  const std::vector<Network> networks = {
      {"U-Net, depth 4, 2 convolutions, 16 channels, 2 x 96 x 96",
       [] { return models::unet(models::UNetOptions().depth(4).num_convs(2).base_channels(16)); },
       {2, 3, 96, 96}},
      {"AmoebaNet-D (3, 32), 1 x 224 x 224",
       [] {
         return models::amoebanetd(
             models::AmoebaNetDOptions().num_classes(10).num_layers(3).num_filters(32));
       },
       {1, 3, 224, 224}},
      {"ResNet [1, 1, 1, 1], 4 x 64 x 64",
       [] {
         return models::resnet(models::ResNetOptions({1, 1, 1, 1}).num_classes(10));
       },
       {4, 3, 64, 64}},
  };
  for (const Network& network : networks) compare(network, runs, rounds);
}

}  // namespace
}  // namespace gpipe::balance

int main(int argc, char** argv) {
  gpipe::balance::compare_all(argc > 1 ? std::max<int64_t>(std::atoi(argv[1]), 1) : 5);
  return 0;
}
