// Measures whether the advice of diagnoses gains what it predicts. The pipelines are small networks
// in two partitions on this machine's CPU, with one thread each. They are set up badly: too many
// micro-batches, the same number of layers in each partition, everything checkpointed, fill-drain.
// Each piece of advice is followed, and steps with and without it are timed in turns.
//   advice_benchmark [NETWORK [SECONDS]]
// NETWORK is 0, 1 or 2; without it all three are run. Prints predicted and real gains.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/rand.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "balance/testing/small_networks.h"
#include "diagnose/diagnose.h"
#include "diagnose/diagnosis_text.h"
#include "gpipe/gpipe.h"
#include "gpipe/timing.h"

namespace gpipe {
namespace {

using testing::SmallNetwork;

constexpr int64_t kPartitions = 2;
// The number of micro-batches of small_networks() in a mini-batch.
constexpr int64_t kMicroBatches = 8;
constexpr size_t kTurns = 5;

at::Tensor loss(const Tensors& outputs, const Tensors&) { return outputs[0].mean(); }

GPipe make_pipe(const SmallNetwork& network, const PipelineSetup& setup) {
  const std::vector<c10::Device> devices(kPartitions, c10::kCPU);
  return GPipe(network.make(), pipe_options(setup, devices).cpu_threads_per_stage(1));
}

// `speed_up` is the median over turns of the present step's time, divided by the time of the step
// with the advice.
struct Gain {
  double speed_up = 0;
  double step = 0;
};

Gain follow(const SmallNetwork& network, const at::Tensor& input, const PipelineSetup& bad,
            const PipelineSetup& good) {
  GPipe before = make_pipe(network, bad);
  GPipe after = make_pipe(network, good);
  const auto step = [&](GPipe& pipe, const PipelineSetup& setup) {
    const double begin = steady_seconds();
    pipe->step({input}, {}, loss, step_options(setup));
    return steady_seconds() - begin;
  };
  std::vector<double> ratios;
  std::vector<double> steps;
  for (size_t turn = 0; turn <= kTurns; ++turn) {
    // Each pipeline runs two steps, of which the second is timed, so that memory settles.
    step(before, bad);
    const double slow = step(before, bad);
    step(after, good);
    const double fast = step(after, good);
    if (turn == 0) continue;
    ratios.push_back(slow / fast);
    steps.push_back(fast);
  }
  return {median(ratios), median(steps)};
}

void compare(const SmallNetwork& network, double seconds) {
  at::manual_seed(0);
  std::vector<int64_t> shape = network.shape;
  shape[0] *= kMicroBatches;
  const at::Tensor input = at::rand(shape);
  const auto layers = static_cast<int64_t>(network.make()->size());
  PipelineSetup bad;
  bad.balance = {layers - layers / 2, layers / 2};
  bad.chunks = shape[0];
  bad.checkpoint_all(Checkpoint::kAlways);
  bad.schedule = {"gpipe", Schedule::gpipe};
  const GPipe pipe = make_pipe(network, bad);
  const Diagnosis diagnosis =
      diagnose(pipe, {input}, {}, loss, DiagnoseOptions().seconds(seconds).step(step_options(bad)));
  std::printf("%s\n%s", network.name.c_str(), to_text(diagnosis).c_str());
  for (const Advice& advice : diagnosis.advice) {
    const Gain real = follow(network, input, bad, advice.setup);
    std::printf(
        "  %-12s predicted %5.2f (%6.1f ms), real %5.2f (%6.1f ms), predicted / real %.2f\n",
        to_text(advice.change), advice.speed_up, 1e3 * advice.step, real.speed_up, 1e3 * real.step,
        advice.speed_up / real.speed_up);
    std::fflush(stdout);
  }
}

void compare_all(int only, double seconds) {
  const std::vector<SmallNetwork> networks = testing::small_networks();
  for (size_t k = 0; k < networks.size(); ++k) {
    if (only < 0 || only == static_cast<int>(k)) compare(networks[k], seconds);
  }
}

}  // namespace
}  // namespace gpipe

int main(int argc, char** argv) {
  const std::string network = argc > 1 ? argv[1] : "";
  const double seconds = argc > 2 ? std::atof(argv[2]) : 1.0;
  if (argc > 3 || !(seconds > 0) ||
      (!network.empty() && network != "0" && network != "1" && network != "2")) {
    std::fputs(
        "usage: advice_benchmark [NETWORK [SECONDS]]\n"
        "NETWORK is 0, 1 or 2 (all, if not given), SECONDS for each measurement (1). Each "
        "network takes some minutes.\n",
        stderr);
    return 2;
  }
  gpipe::compare_all(network.empty() ? -1 : std::stoi(network), seconds);
  return 0;
}
