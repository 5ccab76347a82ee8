#include "experiments/resnet101_accuracy/run_experiment.h"

#include <cmath>
#include <cstddef>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_format.h"
#include "balance/costs/profiler.h"
#include "command/wrong_value.h"
#include "experiments/data/loader.h"
#include "experiments/frame/devices.h"
#include "experiments/frame/other_load.h"
#include "experiments/frame/statistics.h"
#include "experiments/frame/trainer.h"
#include "experiments/resnet101_accuracy/source.h"
#include "experiments/rows/explain_run.h"
#include "experiments/rows/row.h"
#include "experiments/rows/training_run.h"
#include "gpipe/saving/saving.h"
#include "models/resnet.h"
#include "text/counted.h"

namespace gpipe::experiments {
namespace {

// The mini-batch of a validation. Its size affects only memory and speed, not the result.
constexpr int64_t kValidationBatch = 250;
constexpr double kPercent = 100;

// An experiment with everything that is known before it runs.
struct Ready {
  AccuracyFlags flags;
  Settings settings;
  Source source;
  Row row;            // its devices are the replicas of data parallelism, too
  std::string state;  // the folder of its checkpoint; empty: it is not saved

  Way way() const { return settings.published.way; }
  int64_t steps_per_epoch() const { return source.train->size() / settings.batch_size; }
};

Row row_of(const CommonFlags& flags, const Settings& settings, const Dataset& data) {
  const Experiment& experiment = settings.published;
  const bool pipeline = experiment.way == Way::kPipeline;
  Row row;
  row.name = experiment.name;
  row.network.title = settings.network.name();
  row.network.model.make = [options = models::ResNetOptions(settings.network.blocks)
                                          .num_classes(data.num_classes())
                                          .base_planes(settings.network.base_planes)
                                          .in_channels(data.shape().channels)
                                          .inplace(!pipeline)] { return models::resnet(options); };
  if (pipeline) row.setup = choose_setup(flags, settings.balance, settings.chunks);
  // Data parallelism takes any number of devices, so it runs on as many as there are.
  row.devices =
      choose_devices(flags, row.name,
                     pipeline ? static_cast<int64_t>(settings.balance.size()) : experiment.devices,
                     /*any_number=*/experiment.way == Way::kDataParallel);
  row.seed = flags.seed;
  return row;
}

// The settings that a resumed run must have in common with the earlier run.
std::map<std::string, std::string> config_of(const Ready& ready) {
  const Settings& settings = ready.settings;
  std::map<std::string, std::string> config = {
      {"experiment", ready.row.name},
      {"network", ready.row.network.title},
      {"data", ready.source.train->describe()},
      {"batch_size", std::to_string(settings.batch_size)},
      {"seed", std::to_string(ready.flags.common.seed)},
      {"weight_decay", std::to_string(settings.weight_decay)}};
  // Batch norm computes over a micro-batch, or over a replica's share of the mini-batch, so the
  // number of these changes the result.
  if (ready.way() == Way::kPipeline) config["chunks"] = std::to_string(settings.chunks);
  if (ready.way() == Way::kDataParallel)
    config["replicas"] = std::to_string(ready.row.devices.size());
  return config;
}

std::string describe(const Ready& ready) {
  const Settings& settings = ready.settings;
  std::string text = ready.row.network.title + ", " + ready.source.train->describe() +
                     absl::StrFormat(", batch %d", settings.batch_size);
  if (ready.row.is_pipeline()) text += ", " + to_text(ready.row.setup);
  return text + ", " + text::counted(settings.epochs, "epoch") + ", " +
         count_devices(ready.row.devices);
}

Json settings_of(const Ready& ready) {
  const Settings& settings = ready.settings;
  Json json = {{"network", ready.row.network.title},
               {"data", ready.source.train->describe()},
               {"batch_size", settings.batch_size},
               {"epochs", settings.epochs}};
  add_common(ready.flags.common, ready.row.devices, json);
  json["skip_epochs"] = ready.flags.common.skip_epochs;
  if (ready.row.is_pipeline()) add_pipeline(ready.row.setup, json);
  return json;
}

std::pair<LoaderOptions, LoaderOptions> loading(const Ready& ready) {
  LoaderOptions train;
  train.batch_size = ready.settings.batch_size;
  train.shuffle = true;
  train.drop_last = true;
  train.workers = ready.flags.workers;
  train.seed = ready.flags.common.seed;
  train.replace_unreadable = true;
  train.pinned = ready.row.devices.front().is_cuda();
  LoaderOptions validation = train;
  validation.batch_size = kValidationBatch;
  validation.shuffle = false;
  validation.drop_last = false;
  validation.replace_unreadable = false;
  return {train, validation};
}

void warn_of_unreadable(const Loader& loader, const char* what) {
  if (loader.unreadable() == 0) return;
  std::cerr << "warning: " << loader.unreadable() << " of the images for " << what << "\n";
  for (const std::string& example : loader.unreadable_examples()) {
    std::cerr << "  " << example << "\n";
  }
}

// Puts the figures of the epochs so far into the outcome.
void note_epochs(const std::vector<EpochResult>& epochs, std::size_t skip, Outcome& outcome) {
  std::vector<double> throughputs;
  outcome.epochs = Json::array();
  for (const EpochResult& epoch : epochs) {
    throughputs.push_back(epoch.throughput);
    outcome.epochs.push_back({{"lr", epoch.lr},
                              {"train_loss", epoch.train_loss},
                              {"seconds", epoch.seconds},
                              {"throughput", epoch.throughput},
                              {"valid_loss", epoch.valid_loss},
                              {"top1_error_percent", kPercent * (1 - epoch.accuracy)}});
  }
  outcome.figures["top1_error_percent"] = kPercent * (1 - epochs.back().accuracy);
  outcome.figures["throughput"] = mean_after(throughputs, skip);
}

// An empty text, or a note about a training that diverged.
std::string divergence(const std::vector<EpochResult>& epochs) {
  for (std::size_t i = 0; i < epochs.size(); ++i) {
    if (std::isfinite(epochs[i].train_loss) && std::isfinite(epochs[i].valid_loss)) continue;
    return absl::StrFormat("diverged: the loss of epoch %d is not finite; ", i + 1);
  }
  return "";
}

void say_average(const Ready& ready, const std::vector<EpochResult>& epochs, std::ostream& out) {
  const auto skip = static_cast<std::size_t>(ready.flags.common.skip_epochs);
  std::vector<double> throughputs;
  std::vector<double> seconds;
  for (const EpochResult& epoch : epochs) {
    throughputs.push_back(epoch.throughput);
    seconds.push_back(epoch.seconds);
  }
  out << absl::StrFormat(
             "%s, %s, %d batch, %d-%d epochs | valid accuracy: %.4f | "
             "%.3f samples/sec, %.3f sec/epoch (average)\n",
             ready.row.name,
             text::counted(static_cast<int64_t>(ready.row.devices.size()), "device"),
             ready.settings.batch_size, skip < epochs.size() ? skip + 1 : 1, epochs.size(),
             epochs.back().accuracy, mean_after(throughputs, skip), mean_after(seconds, skip))
      << std::flush;
}

// All training options except on_epoch.
TrainingOptions training_options(const Ready& ready) {
  const Settings& settings = ready.settings;
  TrainingOptions options;
  options.title = ready.row.name;
  options.epochs = settings.epochs;
  options.lr = [settings, steps = ready.steps_per_epoch()](int64_t step, int64_t epochs) {
    LrSchedule schedule;
    schedule.batch_size = settings.batch_size;
    schedule.steps_per_epoch = steps;
    schedule.epochs = epochs;
    schedule.reference_batch = settings.reference_batch;
    schedule.decay = settings.decay;
    return schedule.at(step);
  };
  options.weight_decay = settings.weight_decay;
  options.loss = ready.row.task().loss;
  options.trace = ready.flags.common.trace;
  options.state = ready.state;
  options.resume = ready.flags.resume;
  options.config = config_of(ready);
  return options;
}

void run_ready(const Ready& ready, Outcome& outcome, const RunContext& context) {
  const auto [train_loading, validation_loading] = loading(ready);
  Loader train(ready.source.train, train_loading);
  Loader validation(ready.source.validation, validation_loading);
  const std::unique_ptr<Trainer> trainer =
      ready.way() == Way::kDataParallel
          ? make_data_parallel_trainer(ready.row.task(), ready.row.devices)
          : ready.row.make_trainer();

  const std::string description = describe(ready);
  outcome.note = description;
  outcome.settings = settings_of(ready);
  TrainingOptions options = training_options(ready);
  options.on_epoch = [&](const std::vector<EpochResult>& epochs) {
    note_epochs(epochs, static_cast<std::size_t>(ready.flags.common.skip_epochs), outcome);
  };

  *context.out << "\n" << ready.row.name << ": " << description << std::endl;
  const std::optional<OtherLoad> load =
      ready.row.devices.front().is_cpu() ? std::make_optional<OtherLoad>() : std::nullopt;
  const TrainingResult result = run_training(*trainer, train, validation, options, context);
  warn_of_unreadable(train, "training could not be read; others took their place");
  warn_of_unreadable(validation, "validation could not be read; they count neither way");
  outcome.settings["unreadable_images"] = result.unreadable;
  outcome.origin = result.interrupted ? Origin::kInterrupted : Origin::kMeasured;
  outcome.note = divergence(result.epochs) + description;
  if (outcome.note != description) {
    std::cerr << "warning: " << ready.row.name << ": " << outcome.note << "\n";
  }
  if (result.interrupted) {
    outcome.note = absl::StrFormat("stopped after epoch %d of %d; %s", result.epochs.size(),
                                   ready.settings.epochs, outcome.note);
  } else if (load) {
    note_other_load(*load, outcome);
  }
  if (!result.epochs.empty()) say_average(ready, result.epochs, *context.out);
  if (!ready.flags.common.explain || result.interrupted) return;
  train.start(0);
  const std::optional<Batch> batch = train.next();
  if (!batch) return;
  outcome.settings["diagnosis"] = explain_run(
      *trainer, batch->images, batch->labels, ready.row.task().loss, ready.row.setup.schedule.make,
      balance::ParamScale::kSgdMomentum, ready.row.name, context);
}

}  // namespace

std::string state_folder(const AccuracyFlags& flags, const std::string& experiment) {
  return flags.state_folder + "/" + experiment + ".checkpoint";
}

RunVariant make_run(const AccuracyFlags& flags, const Experiment& experiment,
                    const Source& source) {
  const auto ready = std::make_shared<Ready>();
  ready->flags = flags;
  ready->settings = settle(experiment, flags.common, flags.limit_train);
  ready->source = source;
  ready->row = row_of(flags.common, ready->settings, *source.train);
  if (ready->steps_per_epoch() == 0) {
    throw command::wrong_value(
        "batch_size", ready->settings.batch_size,
        source.train->describe() +
            " gives not one batch of training; give a smaller batch, or more images "
            "(--limit_train)");
  }
  if (!flags.state_folder.empty()) {
    ready->state = state_folder(flags, experiment.name);
    if (std::filesystem::is_regular_file(ready->state)) {
      throw std::invalid_argument(ready->state +
                                  " is a file, in which an older version saved a run, and runs are "
                                  "saved in folders now: give another --checkpoint_dir");
    }
    check_checkpoint_path(ready->state);
    if (!flags.resume && !flags.overwrite && has_checkpoint(ready->state)) {
      throw std::invalid_argument(ready->state +
                                  " is of an earlier run: --resume goes on with it, --overwrite "
                                  "begins anew, another --checkpoint_dir keeps both");
    }
    check_resumable(training_options(*ready), ready->steps_per_epoch());
  }
  return
      [ready](Outcome& outcome, const RunContext& context) { run_ready(*ready, outcome, context); };
}

}  // namespace gpipe::experiments
