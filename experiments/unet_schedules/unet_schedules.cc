// U-Net schedules: steps of a U-Net under several schedules in two workers, predicted and measured.
// See README.md in this folder.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "balance/costs/contention.h"
#include "balance/costs/profiler.h"
#include "balance/step/explain.h"
#include "command/interrupt.h"
#include "command/progress.h"
#include "experiments/frame/flags.h"
#include "experiments/frame/other_load.h"
#include "experiments/frame/program.h"
#include "experiments/frame/variants.h"
#include "experiments/rows/row.h"
#include "experiments/rows/scaled_unet.h"
#include "gpipe/gpipe.h"
#include "gpipe/internal/threads/cpu_threads.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/timing.h"
#include "machine/cores.h"
#include "skip/tracker.h"

namespace gpipe::experiments {
namespace {

constexpr char kUsage[] =
    "Trains a small U-Net in two workers of one thread each under 1F1B, ZB-H1, interleaved (two\n"
    "stages on a worker) and ZB-V, and prints the measured step beside the predicted one.\n\n"
    "  tools/bazel run //experiments/unet_schedules\n"
    "  tools/bazel run //experiments/unet_schedules -- --ways=simulated --scale=small\n\n"
    "Experiments: 1f1b, zb-h1, interleaved, zb-v.\n"
    "Ctrl-C stops after the current step with what was reached (exit code 130).";

constexpr int64_t kWorkers = 2;
constexpr int64_t kRounds = 3;
constexpr double kMilliseconds = 1e3;

struct Size {
  int64_t depth;
  int64_t channels;
  int64_t image_size;
  int64_t batch;
  int64_t chunks;
  int64_t steps;   // of a round
  double seconds;  // how long profiling measures
};

Size size_of(Scale scale) {
  if (scale == Scale::kSmoke) return {4, 16, 96, 16, 8, 5, 1.5};
  if (scale == Scale::kSmall) return {4, 16, 96, 16, 8, 20, 5};
  return {5, 32, 192, 32, 8, 10, 10};
}

// What the rows share: the network, and the profile from which all of them are predicted.
class Subject {
 public:
  Subject(Size size, uint64_t seed, Checkpoint checkpoint) : size_(size), checkpoint_(checkpoint) {
    row_.network = scaled_unet(size.depth, 2, size.channels, size.image_size);
    row_.network.title = absl::StrFormat("U-Net (2, %d) of depth %d", size.channels, size.depth);
    row_.make_target = unet_target;
    row_.batch_size = size.batch;
    row_.seed = seed;
  }

  const Size& size() const { return size_; }
  Checkpoint checkpoint() const { return checkpoint_; }
  // Without a cut, which the schedules differ in.
  const Row& row() const { return row_; }

  int64_t stages_of(const std::string& schedule) const {
    const bool one_each =
        find_variant(named_schedules(), schedule).shape == PlacementShape::kOneEach;
    return one_each ? kWorkers : 2 * kWorkers;
  }

  // Predicts a step under the schedule, with the best cut that is found for it. The first call
  // measures the profile of the network.
  balance::Explanation predicted(const std::string& schedule, const RunContext& context) {
    measure(context);
    balance::ExplainOptions options;
    options.chunks = size_.chunks;
    options.checkpoint = checkpoint_;
    options.schedule = schedule_by_name(schedule);
    options.cores = kWorkers;
    options.contention = contention_;
    return balance::explain(
        *profile_, balance::best_balance(*profile_, stages_of(schedule), options), options);
  }
  double contention() const { return contention_; }

 private:
  void measure(const RunContext& context) {
    if (profile_) return;
    const auto check = [&] { context.check(); };
    const int64_t rows = size_.batch / size_.chunks;
    balance::Profile profile = balance::profile(
        row_.task().make_model(), row_.input(rows, c10::kCPU),
        balance::ProfileOptions().timeout(size_.seconds).cpu_threads(1).after_each_layer(check));
    const auto pass = [&]() -> std::function<void()> {
      return [model = row_.task().make_model(), image = row_.input(rows, c10::kCPU),
              target = row_.target(rows, c10::kCPU), loss = row_.loss()]() mutable {
        internal::set_threads_of_this_thread(1);
        const skip::Scope skips;
        loss({model->forward(image)}, {target}).backward();
      };
    };
    balance::ContentionOptions options;
    options.seconds = size_.seconds / 2;
    const internal::DefaultThreadsScope threads;
    contention_ = balance::measure_contention(pass(), {pass()}, options);
    check();
    profile_ = std::move(profile);
  }

  Size size_;
  Row row_;
  Checkpoint checkpoint_;
  std::optional<balance::Profile> profile_;
  double contention_ = 1;
};

Json settings_of(const Subject& subject, const std::string& schedule,
                 const balance::Explanation& explanation) {
  return {{"network", subject.row().describe()},
          {"batch_size", subject.size().batch},
          {"image_size", subject.size().image_size},
          {"chunks", subject.size().chunks},
          {"schedule", schedule},
          {"checkpoint", to_text(subject.checkpoint())},
          {"balance", explanation.balance()},
          {"workers", kWorkers},
          {"contention", subject.contention()}};
}

std::string describe(const Subject& subject, const balance::Explanation& explanation) {
  return absl::StrFormat("%s, %d micro-batches, balance [%s], checkpoint %s, 2 workers of a thread",
                         subject.row().describe(), subject.size().chunks,
                         absl::StrJoin(explanation.balance(), ", "), to_text(subject.checkpoint()));
}

void simulate(Subject& subject, const std::string& schedule, Outcome& outcome,
              const RunContext& context) {
  const balance::Explanation explanation = subject.predicted(schedule, context);
  outcome.note = describe(subject, explanation) +
                 absl::StrFormat(
                     "; layers measured here, one after another; two at once take %.2f "
                     "times as long",
                     subject.contention());
  outcome.settings = settings_of(subject, schedule, explanation);
  outcome.figures["step"] = kMilliseconds * explanation.step;
  outcome.figures["idle"] = 100 * explanation.bubble;
  outcome.origin = Origin::kSimulated;
}

// A row's pipeline and its measurements, kept from round to round.
struct Measured {
  std::optional<GPipe> pipe;
  std::vector<double> seconds;
  std::string disturbed;  // the note on a round that other work disturbed; empty: none
};

void measure(Subject& subject, const CommonFlags& flags, const std::string& schedule,
             Measured& measured, Outcome& outcome, const RunContext& context) {
  const balance::Explanation explanation = subject.predicted(schedule, context);
  const int64_t stages = subject.stages_of(schedule);
  const std::vector<c10::Device> devices(static_cast<size_t>(stages), c10::kCPU);
  if (!measured.pipe) {
    measured.pipe =
        GPipe(subject.row().task().make_model(), GPipeOptions(explanation.balance())
                                                     .devices(devices)
                                                     .chunks(subject.size().chunks)
                                                     .checkpoint(subject.checkpoint())
                                                     .placement(placement_by_name(schedule, stages))
                                                     .cpu_threads_per_stage(1));
  }
  outcome.note = describe(subject, explanation);
  outcome.settings = settings_of(subject, schedule, explanation);
  add_common(flags, std::vector<c10::Device>(kWorkers, c10::kCPU), outcome.settings);
  const at::Tensor input = subject.row().input(subject.size().batch, c10::kCPU);
  const at::Tensor target = subject.row().target(subject.size().batch, c10::kCPU);
  const LossFn loss = subject.row().loss();
  const StepOptions options = StepOptions().schedule(schedule_by_name(schedule));
  const auto step = [&] { (*measured.pipe)->step({input}, {target}, loss, options); };
  command::Progress progress(
      *context.progress,
      absl::StrFormat("%s, round %d/%d", schedule, context.round, context.rounds),
      subject.size().steps, context.progress_options);
  step();
  const OtherLoad load;
  for (int64_t k = 0; k < subject.size().steps; ++k) {
    if (context.is_interrupted()) {
      if (measured.seconds.empty()) throw command::Interrupted();
      outcome.origin = Origin::kInterrupted;
      return;
    }
    measured.seconds.push_back(seconds_of(step));
    outcome.figures["step"] = kMilliseconds * median(measured.seconds);
    outcome.figures["of_predicted"] = median(measured.seconds) / explanation.step;
    outcome.origin = Origin::kMeasured;
    progress.update(k + 1);
  }
  progress.finish();
  const size_t said = outcome.note.size();
  note_other_load(load, outcome);
  if (outcome.settings.value("disturbed", false)) {
    measured.disturbed = outcome.note.substr(said);
  } else if (!measured.disturbed.empty()) {
    outcome.note += measured.disturbed;
    outcome.settings["disturbed"] = true;
  }
  outcome.settings["steps"] = measured.seconds.size();
  *context.out << absl::StrFormat("%s, round %d/%d: a step takes %.1f ms\n", schedule,
                                  context.round, context.rounds, outcome.figures["step"]);
}

PublishedTable table() {
  PublishedTable table;
  table.title = "Schedules of a U-Net on two cores: measured beside predicted";
  table.columns = {{"step", "step (ms)", {}},
                   {"relative", "step / 1F1B's", {}},
                   {"of_predicted", "measured / predicted", {}},
                   {"idle", "idle (%)", {}}};
  table.ratio = "relative";
  table.ratio_of = "step";
  table.reference = "1f1b";
  for (const char* name : {"1f1b", "zb-h1", "interleaved", "zb-v"}) {
    table.rows.push_back({name, {}, ""});
  }
  return table;
}

ExperimentRun prepare() {
  CommonFlags flags = read_common_flags();
  if (flags.schedule) {
    throw std::invalid_argument(
        "--schedule: the rows are the schedules; choose some of them with "
        "--experiment");
  }
  if (flags.batch_size || flags.epochs) {
    throw std::invalid_argument(absl::StrCat(flags.batch_size ? "--batch_size" : "--epochs",
                                             ": the sizes are those of --scale; leave it out"));
  }
  for (const c10::Device device : flags.devices) {
    if (flags.devices_given && !device.is_cpu()) {
      throw std::invalid_argument(
          "--devices: this table is of two workers on the CPU; leave it "
          "out");
    }
  }
  const auto subject = std::make_shared<Subject>(size_of(flags.scale), flags.seed,
                                                 flags.checkpoint.value_or(Checkpoint::kNever));
  ExperimentRun prepared;
  prepared.name = "unet_schedules";
  prepared.table = table();
  prepared.json = flags.json;
  prepared.remarks = {
      "None of this was published. Predicted (the rows that are simulated) is what explain() "
      "makes of one profile of the layers on this machine, of the same network and at the same "
      "size that is measured, with the cut that is found best for each schedule; without the "
      "optimizer's step, which is not measured either. Idle: the mean share of the step in which "
      "the workers are predicted to wait.",
      "Measured: the median step of " + std::to_string(kRounds * subject->size().steps) + ", in " +
          std::to_string(kRounds) + " rounds in turns; --scale=" + to_text(flags.scale) + "."};
  if (machine::usable_cores() < kWorkers) {
    prepared.remarks.emplace_back("This process may use one core, so two workers share it.");
  }
  std::vector<VariantName> names;
  for (const PublishedRow& row : prepared.table.rows) names.push_back({row.experiment, false});
  prepared.variants = make_variants(
      flags, "all", names, {Origin::kMeasured, Origin::kSimulated},
      [subject](const CommonFlags& given, const std::string& name, Origin way) -> RunVariant {
        if (way == Origin::kSimulated) {
          return [subject, name](Outcome& outcome, const RunContext& context) {
            simulate(*subject, name, outcome, context);
          };
        }
        return [subject, given, name, measured = std::make_shared<Measured>()](
                   Outcome& outcome, const RunContext& context) {
          measure(*subject, given, name, *measured, outcome, context);
        };
      });
  for (Variant& variant : prepared.variants) {
    if (variant.way == Origin::kMeasured) variant.rounds = kRounds;
  }
  return prepared;
}

}  // namespace
}  // namespace gpipe::experiments

int main(int argc, char** argv) {
  return gpipe::experiments::run_program(argc, argv, gpipe::experiments::kUsage,
                                         gpipe::experiments::prepare);
}
