// Compares predicted (simulated) with measured steps on this machine's CPU: small networks in one
// and two partitions of one thread each, and sleeping layers, which need no processor, in eight.
//   prediction_benchmark [ROUNDS [PART OF A NETWORK'S NAME]]
// Every round profiles, cuts, predicts and measures, so that other load on the machine affects both
// figures. Prints the medians.

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "balance/costs/contention.h"
#include "balance/costs/profiler.h"
#include "balance/step/explain.h"
#include "balance/testing/small_networks.h"
#include "gpipe/gpipe.h"
#include "gpipe/internal/threads/cpu_threads.h"
#include "gpipe/timing.h"

namespace gpipe::balance {
namespace {

using testing::SmallNetwork;

constexpr int64_t kChunks = 8;
constexpr double kProfileSeconds = 1.0;
constexpr double kStepSeconds = 1.5;

struct Run {
  std::string checkpoint;
  Checkpoint mode;
  std::string schedule_name;
  ScheduleGenerator schedule;
};

at::Tensor loss(const Tensors& outputs, const Tensors&) { return outputs[0].mean(); }

// A forward and a backward of a copy of the model, with one thread per operator.
std::function<void()> plain_pass(const SmallNetwork& network) {
  torch::nn::Sequential model = network.make();
  const at::Tensor input = testing::random_input(network);
  return [model, input]() mutable {
    internal::set_threads_of_this_thread(1);
    model->forward(input).mean().backward();
  };
}

// The median time of a step, in seconds.
double measured_step(const SmallNetwork& network, const std::vector<int64_t>& balance,
                     const Run& run) {
  const auto partitions = balance.size();
  GPipe pipe(network.make(), GPipeOptions(balance)
                                 .devices(std::vector<c10::Device>(partitions, c10::kCPU))
                                 .chunks(kChunks)
                                 .checkpoint(run.mode)
                                 .cpu_threads_per_stage(1));
  const at::Tensor input = testing::random_input(network, kChunks);
  const auto step = [&] { pipe->step({input}, {}, loss, StepOptions().schedule(run.schedule)); };
  step();
  std::vector<double> times;
  for (const double begin = steady_seconds();
       times.size() < 3 || steady_seconds() - begin < kStepSeconds;) {
    const double start = steady_seconds();
    step();
    times.push_back(steady_seconds() - start);
  }
  return median(times);
}

struct Figures {
  std::vector<double> plain, contended, measured, ratio, contended_ratio;
};

// `contends`: whether partitions slow each other down.
void compare(const SmallNetwork& network, int64_t partitions, bool contends,
             const std::vector<Run>& runs, int64_t rounds) {
  std::vector<Figures> figures(runs.size());
  std::vector<double> contentions;
  std::vector<int64_t> balance;
  for (int64_t round = 0; round < rounds; ++round) {
    at::manual_seed(0);
    const torch::nn::Sequential model = network.make();
    const Profile measured = profile(model, testing::random_input(network),
                                     ProfileOptions().timeout(kProfileSeconds).cpu_threads(1));
    ContentionOptions seconds;
    seconds.seconds = kProfileSeconds / 2;
    const double contention =
        contends ? measure_contention(plain_pass(network), {plain_pass(network)}, seconds) : 1.0;
    contentions.push_back(contention);
    for (size_t k = 0; k < runs.size(); ++k) {
      ExplainOptions options;
      options.chunks = kChunks;
      options.checkpoint = runs[k].mode;
      options.schedule = runs[k].schedule;
      // All rounds use the same cut. Otherwise every round would compare another pipeline.
      if (balance.empty()) balance = best_balance(measured, partitions, options);
      Figures& run_figures = figures[k];
      run_figures.plain.push_back(explain(measured, balance, options).step);
      options.contention = contention;
      run_figures.contended.push_back(explain(measured, balance, options).step);
      run_figures.measured.push_back(measured_step(network, balance, runs[k]));
      run_figures.ratio.push_back(run_figures.plain.back() / run_figures.measured.back());
      run_figures.contended_ratio.push_back(run_figures.contended.back() /
                                            run_figures.measured.back());
    }
  }
  std::printf("%s, balance %s, contention %.2f\n", network.name.c_str(),
              absl::StrJoin(balance, ",").c_str(), median(contentions));
  for (size_t k = 0; k < runs.size(); ++k) {
    const Figures& run_figures = figures[k];
    std::printf(
        "  %-12s %-6s predicted %7.1f ms (%7.1f with contention), measured %7.1f ms, "
        "ratio %.2f (%.2f)\n",
        runs[k].checkpoint.c_str(), runs[k].schedule_name.c_str(), 1e3 * median(run_figures.plain),
        1e3 * median(run_figures.contended), 1e3 * median(run_figures.measured),
        median(run_figures.ratio), median(run_figures.contended_ratio));
  }
  std::fflush(stdout);
}

void compare_all(int64_t rounds, const std::string& part) {
  const std::vector<Run> runs = {
      {"never", Checkpoint::kNever, "1f1b", Schedule::one_f_one_b},
      {"never", Checkpoint::kNever, "gpipe", Schedule::gpipe},
      {"except_last", Checkpoint::kExceptLast, "1f1b", Schedule::one_f_one_b},
      {"except_last", Checkpoint::kExceptLast, "gpipe", Schedule::gpipe},
      {"always", Checkpoint::kAlways, "gpipe", Schedule::gpipe},
  };
  const auto asked = [&part](const SmallNetwork& network) {
    return network.name.find(part) != std::string::npos;
  };
  std::vector<SmallNetwork> networks = testing::small_networks();
  networks.push_back(testing::small_transformer());
  for (const SmallNetwork& network : networks) {
    if (!asked(network)) continue;
    compare(network, 1, /*contends=*/false, runs, rounds);
    compare(network, 2, /*contends=*/true, runs, rounds);
  }
  const SmallNetwork sleeping = testing::sleeping_network(8);
  if (asked(sleeping)) compare(sleeping, 8, /*contends=*/false, runs, rounds);
}

}  // namespace
}  // namespace gpipe::balance

int main(int argc, char** argv) {
  gpipe::balance::compare_all(argc > 1 ? std::max<int64_t>(std::atoi(argv[1]), 1) : 5,
                              argc > 2 ? argv[2] : "");
  return 0;
}
