#include "experiments/rows/speed_run.h"

#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "balance/costs/profiler.h"
#include "experiments/frame/memory_limit.h"
#include "experiments/frame/other_load.h"
#include "experiments/frame/statistics.h"
#include "experiments/frame/stopwatch.h"
#include "experiments/frame/trace.h"
#include "experiments/rows/explain_run.h"
#include "gpipe/timeline/time_split.h"
#include "gpipe/timeline/timeline.h"
#include "interception/peak_memory.h"
#include "text/memory_size.h"

namespace gpipe::experiments {
namespace {

constexpr double kLearningRate = 0.1;

enum class Recorded { kNothing, kLastWholeStep, kWholeSteps };

// Runs one epoch. Returns the seconds it took, or nothing if the user stopped it.
std::optional<double> epoch(Trainer& trainer, torch::optim::Optimizer& optimizer,
                            const at::Tensor& input, const at::Tensor& target,
                            const std::string& label, int64_t samples, Timeline& timeline,
                            Recorded recorded, const RunContext& context) {
  std::optional<command::Progress> bar;
  if (context.progress != nullptr) {
    bar.emplace(*context.progress, label, samples, context.progress_options);
  }
  const Stopwatch stopwatch(trainer.input_device());
  const int64_t batch = input.size(0);
  for (int64_t done = 0; done < samples;) {
    const int64_t rows = std::min(batch, samples - done);
    const bool last = samples < done + 2 * batch;
    const bool record = rows == batch && (recorded == Recorded::kWholeSteps ||
                                          (recorded == Recorded::kLastWholeStep && last));
    trainer.observe(record ? timeline.observer() : Observer());
    trainer.step(input.narrow(0, 0, rows), target.narrow(0, 0, rows));
    optimizer.step();
    done += rows;
    if (bar) bar->update(done);
    if (context.is_interrupted()) return std::nullopt;
  }
  return stopwatch.seconds();
}

// If the epochs of a row differ by more than this factor, other work disturbed them, and the row's
// note says so.
constexpr double kNotableRange = 1.25;

// The values of `key` in the epochs that averages count: those of each round after its first
// `skip`. If none remains, all epochs count.
std::vector<double> counted(const Json& epochs, const char* key, std::size_t of_a_round,
                            std::size_t skip) {
  std::vector<double> values, all;
  for (std::size_t k = 0; k < epochs.size(); ++k) {
    all.push_back(epochs[k][key].get<double>());
    if (k % of_a_round >= skip) values.push_back(all.back());
  }
  return values.empty() ? all : values;
}

}  // namespace

void run_speed(Trainer& trainer, torch::optim::Optimizer& optimizer, const at::Tensor& input,
               const at::Tensor& target, const SpeedOptions& options, const RunContext& context,
               Outcome& outcome) {
  if (options.samples < 1 || input.size(0) < 1) {
    throw std::invalid_argument(options.title +
                                ": an epoch without a sample has no speed; give at least one");
  }
  const std::string what = outcome.note;
  const auto skip = static_cast<std::size_t>(std::max<int64_t>(options.skip_epochs, 0));
  const auto of_a_round = static_cast<std::size_t>(options.epochs);
  const bool last_round = context.round == context.rounds;
  const std::string of_rounds =
      context.rounds == 1 ? "" : absl::StrFormat(" of round %d/%d", context.round, context.rounds);
  Timeline timeline;
  std::optional<OtherLoad> load;  // watches since the first epoch that counts
  trainer.module().train();
  for (int64_t number = 1; number <= options.epochs; ++number) {
    const bool counts = number > options.skip_epochs || number == options.epochs;
    if (counts && !load && trainer.input_device().is_cpu()) load.emplace();
    const Recorded recorded = options.utilization && counts ? Recorded::kWholeSteps
                              : !options.trace.empty() && last_round && number == options.epochs
                                  ? Recorded::kLastWholeStep
                                  : Recorded::kNothing;
    const std::optional<double> taken =
        epoch(trainer, optimizer, input, target,
              absl::StrFormat("%s %d/%d%s", options.title, number, options.epochs, of_rounds),
              options.samples, timeline, recorded, context);
    if (!taken) {
      outcome.origin = Origin::kInterrupted;
      outcome.note = absl::StrFormat("stopped after epoch %d of %d%s; %s", number - 1,
                                     options.epochs, of_rounds, what);
      return;
    }
    const double throughput = static_cast<double>(options.samples) / *taken;
    outcome.epochs.push_back({{"seconds", *taken}, {"throughput", throughput}});
    if (context.rounds > 1) outcome.epochs.back()["round"] = context.round;
    outcome.figures["throughput"] = mean(counted(outcome.epochs, "throughput", of_a_round, skip));
    if (context.out != nullptr) {
      *context.out << absl::StrFormat("%d/%d epoch%s | %.3f samples/sec, %.3f sec/epoch\n", number,
                                      options.epochs, of_rounds, throughput, *taken)
                   << std::flush;
    }
  }
  outcome.origin = Origin::kMeasured;
  const std::vector<double> throughputs = counted(outcome.epochs, "throughput", of_a_round, skip);
  if (const double range = range_after(throughputs, 0); last_round && range >= kNotableRange) {
    outcome.note += absl::StrFormat(
        "; its epochs differed by a factor of %.1f: other work disturbed it", range);
  }
  if (load) note_other_load(*load, outcome);
  trainer.observe(nullptr);
  if (options.utilization) {
    const TimeSplit split = split_time(timeline.steps(), trainer.routes());
    if (split.steps > 0) outcome.figures["utilization"] = 100 * split.utilization();
  }
  if (!options.trace.empty() && last_round) {
    write_trace(options.trace, options.title, timeline, trainer.routes(), context.out);
  }
  if (context.out == nullptr || !last_round) return;
  const std::size_t first = skip < of_a_round ? skip + 1 : 1;
  *context.out << absl::StrFormat(
                      "%s, %d-%d epochs%s | %.3f samples/sec, %.3f sec/epoch (average)\n",
                      options.title, first, of_a_round,
                      context.rounds == 1 ? "" : absl::StrFormat(" of %d rounds", context.rounds),
                      mean(throughputs), mean(counted(outcome.epochs, "seconds", of_a_round, skip)))
               << std::flush;
}

void measure_speed(const Row& row, const SpeedOptions& options, const RunContext& context,
                   Outcome& outcome) {
  const MemoryLimit limit(limit_of_run(row.devices));
  std::optional<internal::PeakMemory> memory;
  if (options.memory) memory.emplace(row.devices);
  const std::unique_ptr<Trainer> trainer = row.make_trainer();
  const int64_t rows = std::min(row.batch_size, options.samples);
  const at::Tensor input = row.input(rows, trainer->input_device());
  const at::Tensor target = row.target(rows, trainer->target_device());
  torch::optim::SGD optimizer(trainer->module().parameters(),
                              torch::optim::SGDOptions(kLearningRate));
  if (memory) memory->reset(/*gives_back=*/true);
  run_speed(*trainer, optimizer, input, target, options, context, outcome);
  if (outcome.origin != Origin::kMeasured) return;
  if (memory) {
    const std::vector<int64_t> held = memory->held();
    outcome.figures["memory"] = text::in_gib(std::accumulate(held.begin(), held.end(), int64_t{0}));
    memory.reset();  // explain_run() counts memory itself
  }
  if (options.explain && context.round == context.rounds) {
    outcome.settings["diagnosis"] =
        explain_run(*trainer, input, target, row.task().loss, row.setup.schedule.make,
                    balance::ParamScale::kSgd, row.name, context);
  }
}

}  // namespace gpipe::experiments
