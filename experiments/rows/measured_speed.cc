#include "experiments/rows/measured_speed.h"

#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "balance/costs/profiler.h"
#include "command/flag_values.h"
#include "experiments/frame/balance.h"
#include "experiments/frame/memory_limit.h"
#include "experiments/frame/trainer.h"
#include "experiments/frame/variants.h"
#include "experiments/rows/explain_run.h"
#include "experiments/rows/speed_run.h"
#include "gpipe/pipeline_setup.h"
#include "gpipe/placement.h"

ABSL_FLAG(std::optional<int64_t>, samples, std::nullopt,
          "Samples of a measured epoch. Default: the scale's.");
ABSL_FLAG(
    std::optional<int64_t>, rounds, std::nullopt,
    "How often each row is measured: all rows once, in turns, then all once more, with models "
    "made anew. Averages are over all rounds. Default: 2; 1 at full scale, as published.");
ABSL_FLAG(bool, graphs, false,
          "Record each partition's kernels as CUDA Graphs and replay them (measured pipelines; see "
          "docs/design/graphs.md). A partition that cannot be recorded says so in the log.");

namespace gpipe::experiments {
namespace {

constexpr double kLearningRate = 0.1;

// The settings of one measured row.
struct Settings {
  std::string name;
  std::string assumed;
  SpeedNetwork network;
  std::function<at::Tensor(const models::NamedModel&, int64_t rows, c10::Device)> target;
  int64_t batch_size = 0;
  PipelineSetup setup;  // without a balance: the plain network
  std::optional<Placement> placement;
  int64_t samples = 0;
  int64_t epochs = 10;
  bool graphs = false;  // GPipeOptions::graphs
  std::vector<c10::Device> devices;
  CommonFlags flags;

  int64_t stages() const { return static_cast<int64_t>(setup.balance.size()); }
  bool is_pipeline() const { return stages() > 0; }
};

std::optional<int64_t> samples_flag() {
  return command::in_range("samples", absl::GetFlag(FLAGS_samples), 1, int64_t{1} << 40);
}

Settings settle(const SpeedExperiment& experiment, const CommonFlags& flags,
                const std::string& name) {
  const SpeedVariant& published = find_variant(experiment.variants, name);
  Settings settings;
  settings.name = published.name;
  settings.assumed = experiment.assumed;
  settings.network = experiment.network(flags.scale);
  settings.target = experiment.target;
  settings.batch_size = published.batch_size;
  settings.samples = experiment.samples;
  settings.epochs = experiment.epochs;
  settings.flags = flags;
  int64_t chunks = published.chunks;
  if (flags.scale != Scale::kFull) {
    const SpeedSize& size = flags.scale == Scale::kSmoke ? experiment.smoke : experiment.small;
    chunks = std::min(published.chunks, size.most_chunks);
    settings.batch_size = chunks * size.micro_batch;
    settings.samples = size.samples;
    settings.epochs = size.epochs;
  }
  settings.batch_size = flags.batch_size.value_or(settings.batch_size);
  settings.epochs = flags.epochs.value_or(settings.epochs);
  settings.samples = samples_flag().value_or(settings.samples);
  if (!published.balance.empty()) {
    chunks = choose_chunks(flags, chunks, settings.batch_size);
    settings.setup =
        choose_setup(flags,
                     choose_balance(flags.balance, published.balance, settings.network.title,
                                    layers_of(settings.network.model)),
                     chunks, published.checkpoint);
    settings.graphs = absl::GetFlag(FLAGS_graphs);
    settings.placement = settings.setup.schedule.placement(settings.stages());
  }
  settings.devices = choose_devices(flags, published.name, std::max<int64_t>(settings.stages(), 1));
  return settings;
}

std::string describe(const Settings& settings) {
  std::string text = absl::StrFormat("%s, %d x %s", settings.network.title, settings.batch_size,
                                     absl::StrJoin(settings.network.model.row, " x "));
  if (settings.is_pipeline()) {
    text += ", " + to_text(settings.setup);
    if (settings.graphs) {
      text += settings.devices.front().is_cpu() ? ", graphs (the CPU has none)" : ", graphs";
    }
  }
  text += absl::StrFormat(", %d epochs of %d samples, ", settings.epochs, settings.samples) +
          count_devices(settings.devices);
  const bool published = settings.flags.scale == Scale::kFull && !settings.assumed.empty();
  return text + (published ? "; " + settings.assumed : "");
}

Json settings_of(const Settings& settings) {
  Json json = {{"network", settings.network.title},
               {"batch_size", settings.batch_size},
               {"image_size", settings.network.model.row.back()},
               {"samples", settings.samples},
               {"epochs", settings.epochs}};
  add_common(settings.flags, settings.devices, json);
  json["skip_epochs"] = settings.flags.skip_epochs;
  if (settings.is_pipeline()) {
    add_pipeline(settings.setup, json);
    if (settings.graphs) json["graphs"] = true;
  }
  return json;
}

std::unique_ptr<Trainer> make_trainer(const Settings& settings, const Task& task) {
  const PipelineSetup& setup = settings.setup;
  if (!settings.is_pipeline()) return make_naive_trainer(task, settings.devices.front());
  return make_pipeline_trainer(task,
                               pipeline_options(setup, settings.devices)
                                   .placement(settings.placement)
                                   .graphs(settings.graphs),
                               setup.schedule.make);
}

void run(const Settings& settings, Outcome& outcome, const RunContext& context) {
  if (context.round == 1) {
    outcome.note = describe(settings);
    outcome.settings = settings_of(settings);
    if (context.rounds > 1) outcome.settings["rounds"] = context.rounds;
  }
  *context.out << "\n" << settings.name << ": " << describe(settings) << std::endl;
  const MemoryLimit limit(limit_of_run(settings.devices));
  const Task task = task_of(settings.network.model, settings.flags.seed);
  const std::unique_ptr<Trainer> trainer = make_trainer(settings, task);
  const int64_t rows = std::min(settings.batch_size, settings.samples);
  const at::Tensor input =
      models::random_input(settings.network.model, rows, trainer->input_device());
  const at::Tensor target = settings.target(settings.network.model, rows, trainer->target_device());
  torch::optim::SGD optimizer(trainer->module().parameters(),
                              torch::optim::SGDOptions(kLearningRate));
  SpeedOptions options;
  options.title = settings.name;
  options.samples = settings.samples;
  options.epochs = settings.epochs;
  options.skip_epochs = settings.flags.skip_epochs;
  options.trace = settings.flags.trace;
  run_speed(*trainer, optimizer, input, target, options, context, outcome);
  if (settings.flags.explain && outcome.origin == Origin::kMeasured &&
      context.round == context.rounds) {
    outcome.settings["diagnosis"] =
        explain_run(*trainer, input, target, task.loss, settings.setup.schedule.make,
                    balance::ParamScale::kSgd, settings.name, context);
  }
}

}  // namespace

int64_t rounds_of(Scale scale) {
  return command::in_range("rounds", absl::GetFlag(FLAGS_rounds), 1, 1000)
      .value_or(scale == Scale::kFull ? 1 : 2);
}

void check_measured_speed_flags() {
  (void)samples_flag();
  (void)rounds_of(Scale::kFull);
}

RunVariant measured_speed(const SpeedExperiment& experiment, const CommonFlags& flags,
                          const std::string& variant) {
  return [settings = settle(experiment, flags, variant)](
             Outcome& outcome, const RunContext& context) { run(settings, outcome, context); };
}

}  // namespace gpipe::experiments
