// Measures the gain from balancing: the time of a step of small networks in two partitions on this
// machine's CPU, one thread each, with four cuts.
//   balance_benchmark [ROUNDS]
// - even: as many layers in each partition, as far as possible
// - torchgpipe: its partitioner, on our measured times
// - by time: balance_by_time(), which knows neither checkpoints nor the schedule
// - predicted: best_balance(), which knows both
// In every round the cuts take turns with one step each. Prints the medians, and their ratios to
// the step by time.

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/rand.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "balance/balance.h"
#include "balance/testing/small_networks.h"
#include "balance/testing/torchgpipe_partition.h"
#include "gpipe/gpipe.h"
#include "gpipe/timing.h"

namespace gpipe::balance {
namespace {

constexpr int64_t kPartitions = 2;
constexpr int64_t kChunks = 8;
constexpr size_t kByTime = 2;  // the index of the cut by time

struct Cut {
  std::string name;
  std::vector<int64_t> balance;
};

std::vector<Cut> cuts(const testing::SmallNetwork& network) {
  const torch::nn::Sequential model = network.make();
  const at::Tensor sample = at::rand(network.shape);
  const auto layers = static_cast<int64_t>(model->size());
  std::vector<double> times;
  for (const LayerTimes& layer :
       profile_times(model, sample, TimeOptions().timeout(2).cpu_threads(1))) {
    times.push_back(layer.forward + layer.backward);
  }
  std::vector<int64_t> torchgpipe;
  // torchgpipe balances whole microseconds, so our times are cut to these.
  std::vector<double> microseconds;
  for (const double time : times) microseconds.push_back(static_cast<double>(int64_t(time * 1e6)));
  for (const auto& [begin, end] : testing::torchgpipe_partition(microseconds, kPartitions).blocks) {
    torchgpipe.push_back(end - begin);
  }
  ExplainOptions step;
  step.chunks = kChunks;
  const Profile measured = profile(model, sample, ProfileOptions().timeout(2).cpu_threads(1));
  return {{"even", {layers / 2, layers - layers / 2}},
          {"torchgpipe", torchgpipe},
          {"by time",
           balance_by_time(kPartitions, model, sample, TimeOptions().timeout(2).cpu_threads(1))},
          {"predicted", best_balance(measured, kPartitions, step)}};
}

void compare(const testing::SmallNetwork& network, int64_t rounds) {
  at::manual_seed(0);
  const std::vector<Cut> all = cuts(network);
  std::vector<int64_t> shape = network.shape;
  shape[0] *= kChunks;
  const at::Tensor input = at::rand(shape);
  const LossFn loss = [](const Tensors& outputs, const Tensors&) { return outputs[0].mean(); };
  std::vector<GPipe> pipes;
  for (const Cut& cut : all) {
    pipes.emplace_back(network.make(), GPipeOptions(cut.balance)
                                           .devices({c10::kCPU, c10::kCPU})
                                           .chunks(kChunks)
                                           .cpu_threads_per_stage(1));
  }
  std::vector<std::vector<double>> times(all.size());
  std::vector<std::vector<double>> ratios(all.size());
  for (int64_t round = -2; round < rounds; ++round) {
    std::vector<double> of_round;
    for (GPipe& pipe : pipes) {
      const double begin = steady_seconds();
      pipe->step({input}, {}, loss);
      of_round.push_back(steady_seconds() - begin);
    }
    if (round < 0) continue;  // such rounds only warm up
    for (size_t k = 0; k < all.size(); ++k) {
      times[k].push_back(of_round[k]);
      ratios[k].push_back(of_round[k] / of_round[kByTime]);
    }
  }
  std::printf("%s\n", network.name.c_str());
  for (size_t k = 0; k < all.size(); ++k) {
    std::printf("  %-10s %-9s %7.1f ms, %.2f of by time\n", all[k].name.c_str(),
                absl::StrJoin(all[k].balance, ",").c_str(), 1e3 * median(times[k]),
                median(ratios[k]));
  }
  std::fflush(stdout);
}

}  // namespace
}  // namespace gpipe::balance

int main(int argc, char** argv) {
  const int64_t rounds = argc > 1 ? std::max<int64_t>(std::atoi(argv[1]), 1) : 40;
  for (const auto& network : gpipe::testing::small_networks()) {
    gpipe::balance::compare(network, rounds);
  }
  return 0;
}
