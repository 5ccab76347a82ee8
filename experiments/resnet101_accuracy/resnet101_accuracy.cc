// ResNet-101 accuracy: trains through a pipeline, with data parallelism and plainly, validates, and
// prints the table beside torchgpipe's. See README.md in this folder.

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "experiments/common/devices.h"
#include "experiments/common/interrupt.h"
#include "experiments/common/output_path.h"
#include "experiments/common/progress.h"
#include "experiments/common/statistics.h"
#include "experiments/data/loader.h"
#include "experiments/resnet101_accuracy/published.h"
#include "experiments/resnet101_accuracy/run.h"
#include "experiments/resnet101_accuracy/settings.h"
#include "experiments/resnet101_accuracy/source.h"
#include "experiments/resnet101_accuracy/trainer.h"
#include "models/resnet.h"

ABSL_FLAG(
    std::string, experiment, "",
    "What to run, separated by commas: naive-128, dataparallel-256, dataparallel-1k, "
    "pipeline-256, pipeline-1k, pipeline-4k (torchgpipe's names gpipe-* too), or all. Default: "
    "all; for --scale=smoke naive-128,dataparallel-256,pipeline-256,pipeline-1k.");
ABSL_FLAG(
    std::string, scale, "smoke",
    "full: the published ResNet-101, batch sizes and 90 epochs; small: a ResNet of 8 blocks, "
    "some minutes for each experiment; smoke: a ResNet of 4 blocks and 15,000 images, about half a "
    "minute for each.");
ABSL_FLAG(
    std::string, data, "",
    "imagenet:FOLDER (FOLDER/train/CLASS/*.JPEG and FOLDER/val/CLASS/*.JPEG), fashion-mnist, "
    "fashion-mnist:FOLDER, or fake (random images). Default: fashion-mnist; --scale=full needs "
    "to be told.");
ABSL_FLAG(
    std::string, devices, "",
    "One device for each partition or replica, such as cuda:0,cuda:1 or cpu,cpu; one may stand "
    "several times. Default: every CUDA device; without one, the CPU as often as needed.");
ABSL_FLAG(int64_t, epochs, 0,
          "Epochs of training. Default: the scale's (smoke 2, small 9, full 90).");
ABSL_FLAG(int64_t, skip_epochs, 1,
          "Epochs at the beginning that the average throughput leaves out, if others remain.");
ABSL_FLAG(int64_t, batch_size, 0,
          "Images of a mini-batch. Default: the experiment's, at the scale.");
ABSL_FLAG(int64_t, chunks, 0,
          "Micro-batches of a mini-batch (pipelines). Default: the experiment's, at the scale.");
ABSL_FLAG(std::string, balance, "",
          "Layers of each partition (pipelines), such as 20,31. Default: the published balance in "
          "proportion to the network's layers.");
ABSL_FLAG(
    std::string, checkpoint, "except_last",
    "Which micro-batches recompute their activations (pipelines): always, except_last, never.");
ABSL_FLAG(std::string, schedule, "1f1b", "Schedule of the pipeline: 1f1b or gpipe.");
ABSL_FLAG(int64_t, seed, 0,
          "Seed of the parameters, the order of the images and the augmentation.");
ABSL_FLAG(
    int64_t, workers, -1,
    "Threads that load images. Default: 32 for imagenet (or as many as there are cores), else 1.");
ABSL_FLAG(int64_t, limit_train, 0,
          "Train on this many images only. Default: the scale's (smoke 15000).");
ABSL_FLAG(std::string, json, "", "Write the table as JSON to this file too.");
ABSL_FLAG(
    std::string, checkpoint_dir, "",
    "Folder in which each experiment saves itself after every epoch. Default: none is saved.");
ABSL_FLAG(bool, resume, false,
          "Go on from the last finished epochs in --checkpoint_dir. Balance, devices and workers "
          "may differ from the run before; what changes the result may not.");

namespace gpipe::experiments {
namespace {

constexpr int kUsageExitCode = 2;
// The published runs had so many loading processes.
constexpr int64_t kPublishedWorkers = 32;
// Only memory and speed depend on it.
constexpr int64_t kValidationBatch = 250;
constexpr double kPercent = 100;

Checkpoint parse_checkpoint(const std::string& text) {
  if (text == "always") return Checkpoint::kAlways;
  if (text == "except_last") return Checkpoint::kExceptLast;
  if (text == "never") return Checkpoint::kNever;
  throw std::invalid_argument("--checkpoint=" + text + ": give always, except_last or never");
}

int64_t not_negative(const char* name, int64_t value) {
  if (value < 0) {
    throw std::invalid_argument("--" + std::string(name) + "=" + std::to_string(value) +
                                " is negative");
  }
  return value;
}

struct CommandLine {
  std::vector<Experiment> experiments;
  Scale scale = Scale::kSmoke;
  std::string data;
  std::vector<c10::Device> devices;
  Overrides overrides;
  Checkpoint checkpoint = Checkpoint::kExceptLast;
  std::string checkpoint_dir;
  uint64_t seed = 0;
  int64_t skip_epochs = 1;
  int64_t workers = 1;
};

CommandLine read_flags() {
  CommandLine line;
  line.scale = parse_scale(absl::GetFlag(FLAGS_scale));
  std::string names = absl::GetFlag(FLAGS_experiment);
  // One experiment of each way and a deep pipeline: what two cores do within a few minutes.
  if (names.empty() && line.scale == Scale::kSmoke) {
    names = "naive-128,dataparallel-256,pipeline-256,pipeline-1k";
  }
  line.experiments = find_experiments(names);
  line.data = absl::GetFlag(FLAGS_data);
  if (line.data.empty()) {
    if (line.scale == Scale::kFull) {
      throw std::invalid_argument("--scale=full needs --data=imagenet:FOLDER (or --data=fake)");
    }
    line.data = "fashion-mnist";
  }
  line.devices = parse_devices(absl::GetFlag(FLAGS_devices));
  line.overrides.epochs = not_negative("epochs", absl::GetFlag(FLAGS_epochs));
  line.overrides.batch_size = not_negative("batch_size", absl::GetFlag(FLAGS_batch_size));
  line.overrides.chunks = not_negative("chunks", absl::GetFlag(FLAGS_chunks));
  line.overrides.balance = parse_balance(absl::GetFlag(FLAGS_balance));
  line.overrides.limit_train = not_negative("limit_train", absl::GetFlag(FLAGS_limit_train));
  line.checkpoint = parse_checkpoint(absl::GetFlag(FLAGS_checkpoint));
  line.skip_epochs = not_negative("skip_epochs", absl::GetFlag(FLAGS_skip_epochs));
  line.seed = static_cast<uint64_t>(absl::GetFlag(FLAGS_seed));
  line.workers = absl::GetFlag(FLAGS_workers);
  if (line.workers < 0) {
    const auto cores = static_cast<int64_t>(std::max(std::thread::hardware_concurrency(), 1U));
    line.workers = line.data.rfind("imagenet", 0) == 0 ? std::min(kPublishedWorkers, cores) : 1;
  }
  line.checkpoint_dir = output_path(absl::GetFlag(FLAGS_checkpoint_dir));
  if (absl::GetFlag(FLAGS_resume) && line.checkpoint_dir.empty()) {
    throw std::invalid_argument("--resume needs the --checkpoint_dir of the run before");
  }
  return line;
}

// The devices of one experiment: as many as it needs.
std::vector<c10::Device> choose_devices(const CommandLine& line, const Settings& settings) {
  const std::size_t needed = settings.published.way == Way::kPipeline
                                 ? settings.balance.size()
                                 : static_cast<std::size_t>(settings.published.devices);
  std::vector<c10::Device> devices = line.devices;
  if (devices.empty()) return std::vector<c10::Device>(needed, c10::Device(c10::kCPU));
  if (devices.size() < needed) {
    // Data parallelism runs on any number of devices.
    const bool chosen = !absl::GetFlag(FLAGS_devices).empty();
    if (settings.published.way == Way::kDataParallel && chosen) return devices;
    throw std::invalid_argument(settings.published.name + " needs " + std::to_string(needed) +
                                " devices, there are " + std::to_string(devices.size()) + " (" +
                                to_text(devices) +
                                "); a device may be listed several times in --devices");
  }
  devices.resize(needed, c10::Device(c10::kCPU));
  return devices;
}

std::unique_ptr<Trainer> make_trainer(const CommandLine& line, const Settings& settings,
                                      const Dataset& data,
                                      const std::vector<c10::Device>& devices) {
  const auto options = models::ResNetOptions(settings.blocks)
                           .num_classes(data.num_classes())
                           .base_planes(settings.base_planes)
                           .in_channels(data.shape().channels)
                           .inplace(settings.published.way != Way::kPipeline);
  const uint64_t seed = line.seed;
  const MakeModel make_model = [options, seed] {
    at::manual_seed(seed);
    return models::resnet(options);
  };
  switch (settings.published.way) {
    case Way::kNaive:
      return make_naive_trainer(make_model, devices.front());
    case Way::kDataParallel:
      return make_data_parallel_trainer(make_model, devices);
    case Way::kPipeline:
      return make_pipeline_trainer(make_model,
                                   GPipeOptions(settings.balance)
                                       .devices(devices)
                                       .chunks(settings.chunks)
                                       .checkpoint(line.checkpoint),
                                   absl::GetFlag(FLAGS_schedule));
  }
  throw std::logic_error("unknown way");
}

// What a resumed run must share with the one before.
std::map<std::string, std::string> config_of(const CommandLine& line, const Settings& settings,
                                             const Source& source,
                                             const std::vector<c10::Device>& devices) {
  std::map<std::string, std::string> config = {
      {"experiment", settings.published.name},
      {"network", settings.network()},
      {"data", source.train->describe()},
      {"batch_size", std::to_string(settings.batch_size)},
      {"epochs", std::to_string(settings.epochs)},
      {"seed", std::to_string(line.seed)},
      {"weight_decay", std::to_string(settings.weight_decay)}};
  // Batch norm sees micro-batches or replicas' shares.
  if (settings.published.way == Way::kPipeline) config["chunks"] = std::to_string(settings.chunks);
  if (settings.published.way == Way::kDataParallel) {
    config["replicas"] = std::to_string(devices.size());
  }
  return config;
}

std::string describe(const Settings& settings, const Source& source,
                     const std::vector<c10::Device>& devices) {
  std::string text = settings.network() + ", " + source.train->describe() + ", batch " +
                     std::to_string(settings.batch_size);
  if (settings.published.way == Way::kPipeline) {
    text += ", chunks " + std::to_string(settings.chunks) + ", balance " +
            to_text(settings.balance) + ", checkpoint " + absl::GetFlag(FLAGS_checkpoint) + ", " +
            absl::GetFlag(FLAGS_schedule);
  }
  return text + ", " + std::to_string(settings.epochs) + " epochs, " +
         std::to_string(devices.size()) + " x " +
         c10::DeviceTypeName(devices[0].type(), /*lower_case=*/true);
}

Outcome run_experiment(const CommandLine& line, const Experiment& experiment,
                       const InterruptScope& interrupt) {
  const Settings settings = settle(experiment, line.scale, line.overrides);
  const std::vector<c10::Device> devices = choose_devices(line, settings);
  const Source source = open_source(line.data, settings, line.seed);

  LoaderOptions loading;
  loading.batch_size = settings.batch_size;
  loading.shuffle = true;
  loading.drop_last = true;
  loading.workers = line.workers;
  loading.seed = line.seed;
  loading.replace_unreadable = true;
  loading.pinned = devices.front().is_cuda();
  Loader train(source.train, loading);
  loading.batch_size = kValidationBatch;
  loading.shuffle = false;
  loading.drop_last = false;
  loading.replace_unreadable = false;
  Loader validation(source.validation, loading);

  const std::unique_ptr<Trainer> trainer = make_trainer(line, settings, *source.train, devices);

  RunOptions options;
  options.title = experiment.name;
  options.epochs = settings.epochs;
  options.schedule.batch_size = settings.batch_size;
  options.schedule.steps_per_epoch = train.batches();
  options.schedule.epochs = settings.epochs;
  options.schedule.reference_batch = settings.reference_batch;
  options.schedule.decay = settings.decay;
  options.weight_decay = settings.weight_decay;
  if (!line.checkpoint_dir.empty()) {
    options.checkpoint = line.checkpoint_dir + "/" + experiment.name + ".checkpoint";
  }
  options.resume = absl::GetFlag(FLAGS_resume);
  options.config = config_of(line, settings, source, devices);
  options.out = &std::cout;
  options.progress = &std::cerr;
  options.progress_options = terminal_options(STDERR_FILENO);
  options.interrupted = [&interrupt] { return interrupt.requested(); };

  const std::string description = describe(settings, source, devices);
  std::cout << "\n" << experiment.name << ": " << description << std::endl;
  const RunResult result = run(*trainer, train, validation, options);

  for (const Loader* loader : {&train, &validation}) {
    if (loader->unreadable() == 0) continue;
    std::cerr << "warning: " << loader->unreadable() << " of the images for "
              << (loader == &train ? "training could not be read; others took their place"
                                   : "validation could not be read; they count neither way")
              << "\n";
    for (const std::string& example : loader->unreadable_examples()) {
      std::cerr << "  " << example << "\n";
    }
  }

  Outcome outcome;
  outcome.settings = {{"network", settings.network()},
                      {"data", source.train->describe()},
                      {"batch_size", std::to_string(settings.batch_size)},
                      {"epochs", std::to_string(result.epochs.size())},
                      {"devices", to_text(devices)},
                      {"scale", absl::GetFlag(FLAGS_scale)},
                      {"seed", std::to_string(line.seed)},
                      {"unreadable_images", std::to_string(result.unreadable)}};
  if (experiment.way == Way::kPipeline) {
    outcome.settings.emplace_back("chunks", std::to_string(settings.chunks));
    outcome.settings.emplace_back("balance", to_text(settings.balance));
    outcome.settings.emplace_back("checkpoint", absl::GetFlag(FLAGS_checkpoint));
    outcome.settings.emplace_back("schedule", absl::GetFlag(FLAGS_schedule));
  }
  const std::string stopped = "stopped after epoch " + std::to_string(result.epochs.size()) +
                              " of " + std::to_string(settings.epochs);
  outcome.note = result.interrupted ? stopped + "; " + description : description;
  if (result.epochs.empty()) return outcome;

  std::vector<double> throughputs;
  std::vector<double> seconds;
  for (const EpochResult& epoch : result.epochs) {
    throughputs.push_back(epoch.throughput);
    seconds.push_back(epoch.seconds);
  }
  const auto skip = static_cast<std::size_t>(line.skip_epochs);
  outcome.measured = true;
  outcome.top1_error_percent = kPercent * (1 - result.epochs.back().accuracy);
  outcome.throughput = mean_after(throughputs, skip);
  // Which epochs the average is over.
  const std::size_t first = skip < result.epochs.size() ? skip + 1 : 1;
  std::printf(
      "%s, %zu devices, %lld batch, %zu-%zu epochs | valid accuracy: %.4f | "
      "%.3f samples/sec, %.3f sec/epoch (average)\n",
      experiment.name.c_str(), devices.size(), static_cast<long long>(settings.batch_size), first,
      result.epochs.size(), result.epochs.back().accuracy, outcome.throughput,
      mean_after(seconds, skip));
  std::fflush(stdout);
  return outcome;
}

int run_all() {
  const CommandLine line = read_flags();
  // Named experiments must fit the other flags; of all of them, those that do not fit say so in the
  // table. Either way before hours are spent on the first one.
  const bool named = !absl::GetFlag(FLAGS_experiment).empty();
  const auto fitting = [&line, named](const Experiment& experiment) {
    CommandLine fitting = line;
    if (!named && experiment.way != Way::kPipeline) {
      fitting.overrides.chunks = 0;
      fitting.overrides.balance.clear();
    }
    return fitting;
  };
  std::map<std::string, Outcome> outcomes;
  std::vector<Experiment> runnable;
  for (const Experiment& experiment : line.experiments) {
    try {
      const CommandLine own = fitting(experiment);
      choose_devices(own, settle(experiment, own.scale, own.overrides));
      runnable.push_back(experiment);
    } catch (const std::invalid_argument& error) {
      if (named) throw;
      outcomes[experiment.name].note = error.what();
    }
  }
  if (runnable.empty()) throw std::invalid_argument(outcomes.begin()->second.note);
  InterruptScope interrupt;
  for (const Experiment& experiment : runnable) {
    if (interrupt.requested()) {
      outcomes[experiment.name].note = "stopped before it began";
      continue;
    }
    outcomes[experiment.name] = run_experiment(fitting(experiment), experiment, interrupt);
  }

  Report report = make_report(outcomes, "not asked for (--experiment)");
  report.add_remark(
      "published: torchgpipe v0.0.5, ImageNet, ResNet-101, 90 epochs, on GPUs; reference-*: Goyal "
      "et al.");
  report.add_remark("measured rows: --scale=" + absl::GetFlag(FLAGS_scale) + " on " +
                    std::to_string(std::thread::hardware_concurrency()) + " cores" +
                    (line.devices.empty() ? "" : ", " + to_text(line.devices)) +
                    "; top-1 error after the last epoch, images/s of training with loading.");
  std::cout << "\n" << report.to_text() << std::flush;
  const std::string json = output_path(absl::GetFlag(FLAGS_json));
  if (!json.empty()) {
    write_file_atomically(json, report.to_json());
    std::cout << "written: " << json << std::endl;
  }
  if (!interrupt.requested()) return 0;
  if (!line.checkpoint_dir.empty()) {
    std::cout << "stopped; the same command with --resume goes on after the last finished epoch\n";
  }
  return kInterruptedExitCode;
}

}  // namespace
}  // namespace gpipe::experiments

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Trains ResNets plainly, with data parallelism and through a pipeline, validates after every "
      "epoch and prints top-1 error and throughput beside torchgpipe's published ones.\n\n"
      "  bazel run -c opt //experiments/resnet101_accuracy\n"
      "  bazel run -c opt //experiments/resnet101_accuracy -- --experiment=pipeline-256 "
      "--scale=full --data=imagenet:/data/imagenet --devices=cuda:0,cuda:1\n\n"
      "Ctrl-C stops after the current step with what was reached (exit code 130).");
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  try {
    if (rest.size() > 1) {
      throw std::invalid_argument("'" + std::string(rest[1]) + "' is no flag; see --help");
    }
    return gpipe::experiments::run_all();
  } catch (const c10::Error& error) {
    std::cerr << "error: " << error.what_without_backtrace() << "\n";
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
  }
  return gpipe::experiments::kUsageExitCode;
}
