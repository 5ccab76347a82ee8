// Compares what the planner chooses with a grid of settings made by hand, by real steps on this
// machine's CPU: small networks on two devices of one thread each.
//   plan_benchmark [ROUNDS [PART OF A NETWORK'S NAME]]
// All settings take one step each, again and again, so that what else the machine does meanwhile
// meets all alike; a setting's figure is the median over the rounds of its step / the planned
// one's.

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/rand.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "balance/partition.h"
#include "balance/plan.h"
#include "balance/plan_options.h"
#include "balance/profiler.h"
#include "balance/testing/small_networks.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/timing.h"

namespace gpipe::balance {
namespace {

using testing::SmallNetwork;

constexpr int64_t kDevices = 2;
constexpr int64_t kMicroBatches = 8;  // of the network's shape
constexpr double kProfileSeconds = 2;

at::Tensor loss(const Tensors& outputs, const Tensors&) { return outputs[0].mean(); }

struct Setting {
  std::string name;
  GPipeOptions pipe;
  StepOptions step;
};

// A pipeline and how long its steps took.
struct Run {
  std::string name;
  GPipe pipe;
  StepOptions step;
  std::vector<double> seconds;
};

std::vector<Setting> grid(const SmallNetwork& network, const at::Tensor& input) {
  torch::nn::Sequential model = network.make();
  const auto layers = static_cast<int64_t>(model->size());
  std::vector<double> costs;
  for (const LayerTimes& times :
       profile_times(model, input.narrow(0, 0, network.shape[0]),
                     TimeOptions().timeout(kProfileSeconds / 2).cpu_threads(1))) {
    costs.push_back(times.forward + times.backward);
  }
  struct Way {
    const char* schedule;
    int64_t per_device;
    Checkpoint mode;
  };
  const std::vector<Way> ways = {{"1f1b", 1, Checkpoint::kNever},
                                 {"1f1b", 1, Checkpoint::kExceptLast},
                                 {"1f1b", 1, Checkpoint::kAlways},
                                 {"zb-h1", 1, Checkpoint::kNever},
                                 {"interleaved", 2, Checkpoint::kNever}};
  std::vector<Setting> settings;
  for (const int64_t chunks : {2, 4, 8}) {
    for (const bool even_time : {false, true}) {
      for (const Way& way : ways) {
        const int64_t stages = kDevices * way.per_device;
        if (stages > layers) continue;
        const std::vector<int64_t> balance =
            partition(even_time ? costs : std::vector<double>(costs.size(), 1.0), stages);
        NamedScheduleOptions named;
        named.stages_per_worker = way.per_device;
        settings.push_back({absl::StrCat(chunks, " chunks, ", way.schedule, ", ", to_text(way.mode),
                                         ", ", absl::StrJoin(balance, ",")),
                            GPipeOptions(balance).chunks(chunks).checkpoint(way.mode).placement(
                                placement_by_name(way.schedule, stages, named)),
                            StepOptions().schedule(schedule_by_name(way.schedule, named))});
      }
    }
  }
  return settings;
}

void compare(const SmallNetwork& network, int64_t rounds) {
  at::manual_seed(0);
  std::vector<int64_t> shape = network.shape;
  shape[0] *= kMicroBatches;
  const at::Tensor input = at::rand(shape);
  ExplainOptions machine;
  machine.cores = kDevices;
  const double begin = steady_seconds();
  const PlanReport report = plan(network.make(), {input},
                                 PlanOptions(kDevices)
                                     .chunks({1, 2, 4, 8})
                                     .timeout(kProfileSeconds)
                                     .cpu_threads(1)
                                     .device_type(c10::kCPU)
                                     .machine(machine));
  const PipelinePlan& choice = report.plan;
  std::printf("%s: planned in %.0f s\n  choice: %lld chunks, %s, %s, %s; predicted %.1f ms\n",
              network.name.c_str(), steady_seconds() - begin, static_cast<long long>(choice.chunks),
              choice.schedule_name.c_str(),
              absl::StrJoin(choice.checkpoints, ",",
                            [](std::string* out, Checkpoint mode) { out->append(to_text(mode)); })
                  .c_str(),
              absl::StrJoin(choice.balance, ",").c_str(), 1e3 * choice.step);
  std::fflush(stdout);

  const std::vector<c10::Device> cpus(static_cast<size_t>(kDevices), c10::kCPU);
  std::vector<Run> runs;
  runs.push_back({"the choice",
                  GPipe(network.make(), pipe_options(choice, cpus).cpu_threads_per_stage(1)),
                  step_options(choice),
                  {}});
  for (Setting& setting : grid(network, input)) {
    const std::vector<c10::Device> of_stages(setting.pipe.balance().size(), c10::kCPU);
    runs.push_back({setting.name,
                    GPipe(network.make(), setting.pipe.devices(of_stages).cpu_threads_per_stage(1)),
                    setting.step,
                    {}});
  }
  for (int64_t round = -1; round < rounds; ++round) {  // the first does not count
    for (Run& run : runs) {
      const double start = steady_seconds();
      run.pipe->step({input}, {}, loss, run.step);
      if (round >= 0) run.seconds.push_back(steady_seconds() - start);
    }
  }
  struct Row {
    double ratio;
    const Run* run;
  };
  std::vector<Row> rows;
  for (const Run& run : runs) {
    std::vector<double> ratios;
    for (size_t k = 0; k < run.seconds.size(); ++k) {
      ratios.push_back(run.seconds[k] / runs[0].seconds[k]);
    }
    rows.push_back({median(ratios), &run});
  }
  std::printf("  measured %.1f ms, predicted / measured %.2f\n", 1e3 * median(runs[0].seconds),
              choice.step / median(runs[0].seconds));
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.ratio < b.ratio; });
  std::printf("  step / the choice's, of %zu settings:\n", rows.size() - 1);
  for (size_t k = 0; k < rows.size(); ++k) {
    const bool shown = k < 5 || k + 1 == rows.size() || rows[k].run == &runs[0];
    if (shown) std::printf("    %2zu. %.2f  %s\n", k + 1, rows[k].ratio, rows[k].run->name.c_str());
  }
  std::fflush(stdout);
}

}  // namespace
}  // namespace gpipe::balance

int main(int argc, char** argv) {
  const int64_t rounds = argc > 1 ? std::max<int64_t>(std::atoi(argv[1]), 1) : 15;
  const std::string part = argc > 2 ? argv[2] : "";
  for (const gpipe::testing::SmallNetwork& network : gpipe::testing::small_networks()) {
    if (network.name.find(part) != std::string::npos) gpipe::balance::compare(network, rounds);
  }
  return 0;
}
