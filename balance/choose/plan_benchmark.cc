// Compares the planner's choice with the best of a grid of handmade settings, and with plain
// LibTorch on all cores. It takes real steps on this machine's CPU, with small networks on two
// devices of one thread each.
//
//   tools/bazel run //balance/choose:plan_benchmark -- --networks=unet --minutes=4
//   --json=plan.json
//
// Run it on an otherwise idle machine. All settings take turns repeatedly, so that other load on
// the machine affects all of them alike. A figure is the median over the turns of a setting's step
// divided by the choice's step in the same turn. A turn has two steps. Only the second is timed;
// the first brings memory and caches to the state that they have in training.
//
// If plain LibTorch is faster, the difference is divided into parts:
//   micro-batches  Two threads, each with half of the micro-batches and a whole model, take longer
//                  than the whole mini-batch on two threads. No cut can change that.
//   recomputes     recomputed forwards, and the extra time of split backwards
//   uneven         the busier device has more than half of the work
//   waiting        filling, draining and transfers, as simulated
//   beyond         the time by which a step exceeds its prediction
// The parts from "recomputes" on are predicted. They are scaled by the ratio of the two threads'
// time to the profile's, so contention counts as "micro-batches".

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cross_entropy_loss.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "balance/choose/plan.h"
#include "balance/choose/plan_options.h"
#include "balance/costs/profiler.h"
#include "balance/cut/partition.h"
#include "balance/step/explain.h"
#include "balance/testing/small_networks.h"
#include "command/files.h"
#include "command/flag_values.h"
#include "command/interrupt.h"
#include "command/progress.h"
#include "command/run.h"
#include "command/select_names.h"
#include "command/wrong_value.h"
#include "gpipe/gpipe.h"
#include "gpipe/internal/threads/cpu_threads.h"
#include "gpipe/pipeline_setup.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/timing.h"
#include "machine/cores.h"
#include "skip/tracker.h"

ABSL_FLAG(std::string, networks, "all", "Some of unet, amoebanetd, resnet, transformer.");
ABSL_FLAG(double, minutes, 4,
          "Minutes of turns for each network, besides planning. At least 5 turns.");
ABSL_FLAG(double, profile_seconds, 2, "Seconds to measure each size of micro-batches.");
ABSL_FLAG(int64_t, memory_mib, 0,
          "MiB of each device: settings predicted to need more are left out. 0: no limit.");
ABSL_FLAG(std::string, json, "", "Write all figures as JSON to this file.");

namespace gpipe::balance {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kUsage[] =
    "Real steps of what the planner chooses, of 30 settings made by hand and of plain LibTorch, "
    "in\n"
    "turns, on two devices of one thread each.\n\n"
    "  tools/bazel run //balance/choose:plan_benchmark -- --networks=unet,resnet --json=plan.json";

constexpr int64_t kDevices = 2;
constexpr int64_t kMicroBatches = 8;  // in a mini-batch; each has the network's batch size
constexpr int64_t kLeastTurns = 5;
// After this many turns, settings that take kSlow times as long as the fastest one are dropped.
constexpr int64_t kTurnsOfAll = 3;
constexpr double kSlow = 1.25;
// The planner's targets: the choice's step is at most 1.05 times the step of the grid's best, and
// plain LibTorch's step is at least 0.9 times the choice's.
constexpr double kMostBehindGrid = 1.05;
constexpr double kLeastOfPlain = 0.9;

struct Settings {
  std::vector<std::string> networks;
  double seconds = 0;
  double profile_seconds = 0;
  int64_t memory = 0;
  std::string json;
};

struct Network {
  std::string key;
  std::string name;
  std::function<torch::nn::Sequential()> make;
  at::Tensor input;   // a mini-batch
  at::Tensor target;  // undefined: the loss is the mean of the output
};

at::Tensor loss(const Tensors& outputs, const Tensors& targets) {
  if (targets.empty()) return outputs[0].mean();
  return at::cross_entropy_loss(outputs[0].flatten(0, 1), targets[0].flatten());
}

Tensors targets_of(const Network& network) {
  return network.target.defined() ? Tensors{network.target} : Tensors{};
}

Network image_network(const std::string& key, size_t which) {
  const testing::SmallNetwork small = testing::small_networks().at(which);
  return {key, small.name, small.make, testing::random_input(small, kMicroBatches), {}};
}

Network small_transformer() {
  const testing::SmallNetwork small = testing::small_transformer();
  return {"transformer", small.name, small.make, testing::random_input(small, kMicroBatches),
          testing::random_input(small, kMicroBatches)};
}

Network network_of(const std::string& key) {
  if (key == "unet") return image_network(key, 0);
  if (key == "amoebanetd") return image_network(key, 1);
  if (key == "resnet") return image_network(key, 2);
  return small_transformer();
}

// A model, with a way to train it for one step of the mini-batch.
struct Run {
  std::string name;
  std::function<void()> step;
  double predicted = 0;  // predicted seconds; 0: there is no prediction
  std::vector<double> seconds = {};
  bool out = false;  // whether the run takes no more turns
};

double time_of(const Run& run) { return median(run.seconds); }

// The median over the turns of the run's step divided by the step of `base`.
double ratio(const Run& run, const Run& base) {
  std::vector<double> ratios;
  for (size_t k = 0; k < run.seconds.size(); ++k) {
    ratios.push_back(run.seconds[k] / base.seconds[k]);
  }
  return median(ratios);
}

Run pipeline(const Network& network, const std::string& name, const GPipeOptions& options,
             const StepOptions& step, double predicted) {
  GPipe pipe(network.make(), options);
  return {name,
          [pipe, step, network]() mutable {
            pipe->step({network.input}, targets_of(network), loss, step);
          },
          predicted};
}

void plain_step(torch::nn::Sequential& model, const at::Tensor& input, const at::Tensor& target) {
  const skip::Scope skips;
  const at::Tensor output = model->forward(input);
  loss({output}, target.defined() ? Tensors{target} : Tensors{}).backward();
}

Run plain(const Network& network) {
  return {"plain LibTorch", [model = network.make(), network]() mutable {
            plain_step(model, network.input, network.target);
          }};
}

// Runs all micro-batches on each of two threads at once, each with its own model. Half of that time
// is what a pipeline without cuts, bubbles and transfers would take.
Run both_cores(const Network& network, int64_t chunks) {
  std::array<torch::nn::Sequential, kDevices> models = {network.make(), network.make()};
  return {"micro-batches on each core", [models, network, chunks]() mutable {
            std::vector<std::thread> threads;
            for (torch::nn::Sequential& model : models) {
              threads.emplace_back([&] {
                internal::set_threads_of_this_thread(1);
                const int64_t rows = network.input.size(0) / chunks;
                for (int64_t i = 0; i < chunks; ++i) {
                  const auto part = [&](const at::Tensor& whole) {
                    return whole.defined() ? whole.narrow(0, i * rows, rows) : whole;
                  };
                  plain_step(model, part(network.input), part(network.target));
                }
              });
            }
            for (std::thread& thread : threads) thread.join();
          }};
}

struct GridSetting {
  std::string name;
  GPipeOptions pipe;
  StepOptions step;
  double predicted = 0;
  int64_t memory = 0;  // predicted bytes of the device that needs most
};

// `profiles`: by number of chunks.
std::vector<GridSetting> grid(const std::map<int64_t, Profile>& profiles) {
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
  std::vector<GridSetting> settings;
  for (const int64_t chunks : {2, 4, 8}) {
    const Profile& profile = profiles.at(chunks);
    std::vector<double> costs;
    for (const LayerProfile& layer : profile.layers) {
      costs.push_back(layer.forward + layer.backward);
    }
    for (const bool even_time : {false, true}) {
      for (const Way& way : ways) {
        const int64_t stages = kDevices * way.per_device;
        const std::vector<int64_t> balance =
            partition(even_time ? costs : std::vector<double>(costs.size(), 1.0), stages);
        NamedScheduleOptions named;
        named.stages_per_worker = way.per_device;
        ExplainOptions explained;
        explained.chunks = chunks;
        explained.checkpoint = way.mode;
        explained.schedule = schedule_by_name(way.schedule, named);
        explained.cores = kDevices;
        const Explanation explanation = explain(profile, balance, explained);
        int64_t memory = 0;
        for (const WorkerExplanation& worker : explanation.workers) {
          memory = std::max(memory, worker.memory);
        }
        settings.push_back(
            {absl::StrFormat("%d micro-batches, %s, %s, balance %s", chunks, way.schedule,
                             to_text(way.mode), absl::StrJoin(balance, ",")),
             GPipeOptions(balance)
                 .chunks(chunks)
                 .checkpoint(way.mode)
                 .placement(placement_by_name(way.schedule, stages, named))
                 .devices(std::vector<c10::Device>(static_cast<size_t>(stages), c10::kCPU))
                 .cpu_threads_per_stage(1),
             StepOptions().schedule(explained.schedule), explanation.step, memory});
      }
    }
  }
  return settings;
}

// The runs take turns until this many seconds have passed.
int64_t take_turns(std::vector<Run*> runs, const Run& choice, double seconds,
                   command::Progress& progress) {
  const double begin = steady_seconds();
  int64_t turns = 0;
  while (turns < kLeastTurns || steady_seconds() - begin < seconds) {
    for (size_t k = 0; k < runs.size(); ++k) {
      Run& run = *runs[k];
      if (run.out) continue;
      run.step();
      run.seconds.push_back(seconds_of(run.step));
      progress.update(
          turns, absl::StrFormat("%.0f of %.0f s, %d of %d in this turn", steady_seconds() - begin,
                                 seconds, k + 1, runs.size()));
    }
    if (++turns != kTurnsOfAll) continue;
    double least = 1;
    for (const Run* run : runs) {
      if (run->predicted > 0) least = std::min(least, ratio(*run, choice));
    }
    for (Run* run : runs) {
      if (run == &choice || run->predicted <= 0) continue;
      run->out = ratio(*run, choice) > kSlow * least;
      if (run->out) run->step = nullptr;  // frees the run's memory
    }
  }
  return turns;
}

struct Part {
  const char* name;
  double seconds;
};

// Divides the difference between plain LibTorch's step and the choice's into parts.
std::vector<Part> losses(const PlanReport& report, const Run& choice, const Run& plain,
                         const Run& both) {
  const Explanation& explanation = report.explanation;
  const double half = time_of(both) / kDevices;
  const double scale = half / (explanation.one_device / kDevices);
  double mean = 0, most = 0;
  for (const WorkerExplanation& worker : explanation.workers) {
    mean += worker.busy * explanation.step / kDevices;
    most = std::max(most, worker.busy * explanation.step);
  }
  return {{"micro-batches", half - time_of(plain)},
          {"recomputes", scale * (mean - explanation.one_device / kDevices)},
          {"uneven", scale * (most - mean)},
          {"waiting", scale * (explanation.step - most)},
          {"beyond", time_of(choice) - scale * explanation.step}};
}

std::string text_of(const PipelinePlan& plan) {
  return absl::StrFormat("%d micro-batches, %s, %s, balance %s", plan.chunks, plan.schedule_name,
                         absl::StrJoin(names_of(plan.checkpoints), ","),
                         absl::StrJoin(plan.balance, ","));
}

// What was measured of one network, and how long that took.
struct Comparison {
  double load = 0;  // the machine's other work at the begin
  double profiled = 0, planned = 0, measured = 0;
  int64_t turns = 0;
  PlanReport report;
  Run choice, whole, both;
  std::vector<Run> by_hand;  // the best first
  std::vector<std::string> left_out;
};

// Plans the network as a user would. `profiles`: by number of chunks.
PlanReport planned(const Network& network, const Settings& settings,
                   const std::map<int64_t, Profile>& profiles, command::Progress& progress) {
  std::vector<Profile> given;
  for (const auto& [chunks, profile] : profiles) given.push_back(profile);
  ExplainOptions machine;
  machine.cores = kDevices;
  return plan(network.make(), {network.input},
              PlanOptions(kDevices)
                  .chunks({1, 2, 4, 8})
                  .memory(settings.memory)
                  .profiles(given)
                  .make(network.make)
                  .targets(targets_of(network))
                  .loss(loss)
                  .device_type(c10::kCPU)
                  .machine(machine)
                  .progress([&](const std::string& note) { progress.update(0, note); }));
}

Comparison compare(const Network& network, const Settings& settings,
                   const command::InterruptScope& interrupt) {
  command::Progress progress(interrupt, network.key, 0);
  Comparison compared;
  (void)getloadavg(&compared.load, 1);
  const int64_t rows = network.input.size(0);
  std::map<int64_t, Profile> profiles;
  double begin = steady_seconds();
  for (const int64_t chunks : {1, 2, 4, 8}) {
    progress.update(0, absl::StrFormat("measuring micro-batches of %d rows", rows / chunks));
    profiles[chunks] = profile(network.make(), network.input,
                               ProfileOptions()
                                   .micro_batch_rows(rows / chunks)
                                   .timeout(settings.profile_seconds)
                                   .cpu_threads(1)
                                   .after_each_layer([&] { interrupt.check(); }));
  }
  compared.profiled = steady_seconds() - begin;
  begin = steady_seconds();
  compared.report = planned(network, settings, profiles, progress);
  compared.planned = steady_seconds() - begin;

  const PipelinePlan& plan = compared.report.plan;
  const std::vector<c10::Device> cpus(static_cast<size_t>(kDevices), c10::kCPU);
  compared.choice =
      pipeline(network, text_of(plan), pipe_options(plan, cpus).cpu_threads_per_stage(1),
               step_options(plan), plan.step);
  compared.whole = plain(network);
  compared.both = both_cores(network, plan.chunks);
  for (const GridSetting& setting : grid(profiles)) {
    if (settings.memory > 0 && setting.memory > settings.memory) {
      compared.left_out.push_back(setting.name);
      continue;
    }
    compared.by_hand.push_back(
        pipeline(network, setting.name, setting.pipe, setting.step, setting.predicted));
  }
  std::vector<Run*> runs = {&compared.choice, &compared.whole, &compared.both};
  for (Run& run : compared.by_hand) runs.push_back(&run);
  begin = steady_seconds();
  compared.turns = take_turns(runs, compared.choice, settings.seconds, progress);
  compared.measured = steady_seconds() - begin;
  progress.finish();

  const Run& choice = compared.choice;
  std::sort(compared.by_hand.begin(), compared.by_hand.end(), [&](const Run& a, const Run& b) {
    return std::make_pair(a.out, ratio(a, choice)) < std::make_pair(b.out, ratio(b, choice));
  });
  return compared;
}

// Prints how far the choice is behind the settings by hand, and adds that to the figures.
void tell_by_hand(const Comparison& compared, Json& json) {
  const Run& choice = compared.choice;
  const std::vector<Run>& by_hand = compared.by_hand;
  std::cout << absl::StrFormat(
      "  by hand, %d settings (%d more do not fit), step / the choice's:\n", by_hand.size(),
      compared.left_out.size());
  for (size_t k = 0; k < by_hand.size(); ++k) {
    if (k >= 5 && k + 1 < by_hand.size()) continue;
    std::cout << absl::StrFormat("    %2d. %.3f  %s\n", k + 1, ratio(by_hand[k], choice),
                                 by_hand[k].name);
  }
  if (by_hand.empty()) return;
  const double behind = 1 / ratio(by_hand.front(), choice);
  std::cout << absl::StrFormat("  the choice / the best by hand: %.3f, %s\n", behind,
                               behind <= kMostBehindGrid ? "within 1.05" : "MORE THAN 1.05");
  json["choice_by_best"] = behind;
}

// Prints how far plain LibTorch is ahead, and why, and adds that to the figures.
void tell_plain(const Comparison& compared, Json& json) {
  const double of_plain = ratio(compared.whole, compared.choice);
  std::cout << absl::StrFormat("  plain LibTorch, %d threads, the mini-batch at once: %.1f ms\n",
                               at::get_num_threads(), 1e3 * time_of(compared.whole));
  std::cout << absl::StrFormat("  its step / the choice's: %.2f, %s\n", of_plain,
                               of_plain >= kLeastOfPlain ? "at least 0.9" : "less than 0.9");
  json["plain"] = time_of(compared.whole);
  json["plain_by_choice"] = of_plain;
  const std::vector<Part> parts =
      losses(compared.report, compared.choice, compared.whole, compared.both);
  std::cout << "  from its step to the choice's, ms:";
  for (const Part& part : parts) {
    std::cout << absl::StrFormat(" %s %+.1f", part.name, 1e3 * part.seconds);
    json["lost"][part.name] = part.seconds;
  }
  const auto most = std::max_element(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
    return a.seconds < b.seconds;
  });
  std::cout << "\n";
  if (of_plain < kLeastOfPlain) std::cout << "  most is lost to: " << most->name << "\n";
}

// Prints a comparison, and returns its figures.
Json tell(const Network& network, const Comparison& compared) {
  const Run& choice = compared.choice;
  const int64_t rows = network.input.size(0);
  std::cout << absl::StrFormat(
      "%s x %d: %d rows, 2 devices of one thread; load %.1f at the begin\n"
      "  profiled in %.0f s, planned in %.0f s, measured in %.0f s, %d turns\n"
      "  the planner's choice: %s\n"
      "    predicted %.1f ms, measured %.1f ms, predicted / measured %.2f\n",
      network.name, kMicroBatches, rows, compared.load, compared.profiled, compared.planned,
      compared.measured, compared.turns, choice.name, 1e3 * choice.predicted, 1e3 * time_of(choice),
      choice.predicted / time_of(choice));
  Json json = {
      {"network", network.key},        {"name", network.name},       {"rows", rows},
      {"load", compared.load},         {"turns", compared.turns},    {"choice", choice.name},
      {"predicted", choice.predicted}, {"measured", time_of(choice)}};
  tell_by_hand(compared, json);
  tell_plain(compared, json);
  if (compared.load > 0.5) std::cout << "  other work ran: these figures are worth little\n";
  std::cout << std::endl;
  json["by_hand"] = Json::array();
  for (const Run& run : compared.by_hand) {
    json["by_hand"].push_back({{"name", run.name},
                               {"predicted", run.predicted},
                               {"measured", time_of(run)},
                               {"by_choice", ratio(run, choice)},
                               {"turns", run.seconds.size()}});
  }
  json["do_not_fit"] = compared.left_out;
  return json;
}

Settings read_settings() {
  Settings settings;
  settings.networks = command::select_names("--networks", absl::GetFlag(FLAGS_networks),
                                            {"unet", "amoebanetd", "resnet", "transformer"});
  const auto positive = [](const char* flag, double value) {
    if (value > 0 && value < 1e6) return value;
    throw command::wrong_value(flag, value, "give a number above 0");
  };
  settings.seconds = 60 * positive("minutes", absl::GetFlag(FLAGS_minutes));
  settings.profile_seconds = positive("profile_seconds", absl::GetFlag(FLAGS_profile_seconds));
  settings.memory =
      command::in_range("memory_mib", absl::GetFlag(FLAGS_memory_mib), 0, int64_t{1} << 40) *
      (int64_t{1} << 20);
  settings.json = command::FileFlags().output("json", absl::GetFlag(FLAGS_json));
  const int64_t cores = machine::usable_cores();
  if (cores < kDevices) {
    throw std::invalid_argument(absl::StrFormat(
        "%d devices of one thread need as many cores, this process may use %d", kDevices, cores));
  }
  return settings;
}

int run(const Settings& settings) {
  const command::InterruptScope interrupt;
  at::set_num_threads(kDevices);  // plain LibTorch has the cores that the pipelines have
  Json all = Json::array();
  for (const std::string& key : settings.networks) {
    at::manual_seed(0);
    const Network network = network_of(key);
    all.push_back(tell(network, compare(network, settings, interrupt)));
    command::write_result(settings.json, all.dump(2) + "\n");
  }
  return 0;
}

}  // namespace
}  // namespace gpipe::balance

int main(int argc, char** argv) {
  using gpipe::balance::kUsage;
  return gpipe::command::run_command(argc, argv, kUsage, gpipe::balance::read_settings,
                                     gpipe::balance::run);
}
