#include "experiments/frame/flags.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "balance/commands/training_flags.h"
#include "command/flag_values.h"
#include "experiments/frame/balance.h"
#include "experiments/frame/devices.h"

ABSL_FLAG(std::string, experiment, "",
          "What to run: names of the experiments above, separated by commas, or all. Default: all, "
          "unless the introduction above says otherwise.");
ABSL_FLAG(std::string, scale, "smoke",
          "full: the published network, batch sizes and epochs; small: some minutes for each "
          "experiment; smoke: a minute or less for each.");
ABSL_FLAG(
    std::string, devices, "",
    "One device for each partition or replica, such as cuda:0,cuda:1 or cpu,cpu; a device may be "
    "listed several times. Default: every CUDA device; without one, the CPU as often as needed.");
ABSL_FLAG(std::optional<int64_t>, epochs, std::nullopt,
          "Epochs of training (not of memory tables). Default: the scale's.");
ABSL_FLAG(int64_t, skip_epochs, 1,
          "Epochs at the beginning that averages leave out, if others remain (not of memory "
          "tables).");
ABSL_FLAG(std::optional<int64_t>, batch_size, std::nullopt,
          "Samples of a mini-batch. Default: the experiment's, at the scale.");
ABSL_FLAG(std::optional<int64_t>, chunks, std::nullopt,
          "Micro-batches of a mini-batch (pipelines). Default: the experiment's, at the scale.");
ABSL_FLAG(std::string, balance, "",
          "Layers of each partition (pipelines), such as 20,31. Default: the published balance in "
          "proportion to the network's layers.");
ABSL_FLAG(std::optional<gpipe::Checkpoint>, checkpoint, std::nullopt,
          "Which micro-batches recompute their activations (pipelines): always, except_last, "
          "never. Default: except_last, unless the published run had another.");
ABSL_FLAG(std::optional<gpipe::ScheduleChoice>, schedule, std::nullopt,
          gpipe::balance::schedule_help() +
              " Default: 1f1b, unless the introduction above says "
              "otherwise.");
ABSL_FLAG(uint64_t, seed, 0, "Seed of all random numbers, such as the initial parameters.");
ABSL_FLAG(std::string, ways, "",
          "How figures are obtained: names, separated by commas, of measured (on the devices at "
          "hand, at --scale), planned (memory, at full size), simulated (speed, at full size). "
          "Default: all that the experiment has.");
ABSL_FLAG(std::string, json, "", "Write the table as JSON to this file too.");
ABSL_FLAG(std::string, trace, "",
          "Write the timeline of the last whole step that is measured to this file, and say where "
          "its time went (pipelines): a Chrome trace for ui.perfetto.dev, or a picture if the file "
          "ends in .svg, with a simulation of the same actions. If several variants run, their "
          "names stand before the ending.");
ABSL_FLAG(bool, explain, false,
          "Say where the time of a step goes, and what would make it faster (pipelines).");

namespace gpipe::experiments {

CommonFlags read_common_flags() {
  CommonFlags flags;
  flags.experiment = absl::GetFlag(FLAGS_experiment);
  flags.scale = parse_scale(absl::GetFlag(FLAGS_scale));
  flags.devices = parse_devices(absl::GetFlag(FLAGS_devices));
  flags.devices_given = !absl::GetFlag(FLAGS_devices).empty();
  flags.epochs = command::in_range("epochs", absl::GetFlag(FLAGS_epochs), 1);
  flags.skip_epochs = command::in_range("skip_epochs", absl::GetFlag(FLAGS_skip_epochs), 0);
  flags.batch_size = command::in_range("batch_size", absl::GetFlag(FLAGS_batch_size), 1);
  flags.chunks = command::in_range("chunks", absl::GetFlag(FLAGS_chunks), 1);
  flags.balance = parse_balance(absl::GetFlag(FLAGS_balance));
  flags.checkpoint = absl::GetFlag(FLAGS_checkpoint);
  flags.schedule = absl::GetFlag(FLAGS_schedule);
  flags.seed = absl::GetFlag(FLAGS_seed);
  flags.ways = absl::GetFlag(FLAGS_ways);
  command::FileFlags files;
  flags.json = files.output("json", absl::GetFlag(FLAGS_json));
  flags.trace = files.output("trace", absl::GetFlag(FLAGS_trace));
  flags.explain = absl::GetFlag(FLAGS_explain);
  return flags;
}

std::string first_given(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    if (flag != nullptr && flag->CurrentValue() != flag->DefaultValue()) return "--" + name;
  }
  return "";
}

std::string CommonFlags::changes_what_runs() const {
  if (batch_size) return "--batch_size";
  if (chunks) return "--chunks";
  if (!balance.empty()) return "--balance";
  if (checkpoint) return "--checkpoint";
  if (schedule) return "--schedule";
  if (epochs) return "--epochs";
  return for_measured;
}

std::vector<c10::Device> choose_devices(const CommonFlags& flags, const std::string& variant,
                                        int64_t needed, bool any_number) {
  const auto count = static_cast<std::size_t>(needed);
  std::vector<c10::Device> devices = flags.devices;
  if (devices.empty()) return std::vector<c10::Device>(count, c10::Device(c10::kCPU));
  if (any_number && flags.devices_given) return devices;
  if (devices.size() < count) {
    throw std::invalid_argument(variant + " needs " + std::to_string(needed) +
                                " devices, and there " + (devices.size() == 1 ? "is " : "are ") +
                                std::to_string(devices.size()) + " (" + to_text(devices) +
                                "); a device may be listed several times in --devices");
  }
  devices.resize(count, c10::Device(c10::kCPU));
  return devices;
}

int64_t choose_chunks(const CommonFlags& flags, int64_t published, int64_t batch_size) {
  if (!flags.chunks) return std::min(published, batch_size);
  command::check_chunks(*flags.chunks, batch_size);
  return *flags.chunks;
}

std::string count_devices(const std::vector<c10::Device>& devices) {
  return std::to_string(devices.size()) + " x " +
         c10::DeviceTypeName(devices.at(0).type(), /*lower_case=*/true);
}

PipelineSetup choose_setup(const CommonFlags& flags, std::vector<int64_t> balance, int64_t chunks,
                           Checkpoint otherwise, const ScheduleChoice& otherwise_schedule) {
  PipelineSetup setup;
  setup.balance = std::move(balance);
  setup.chunks = chunks;
  setup.checkpoint_all(flags.checkpoint.value_or(otherwise));
  setup.schedule = flags.schedule.value_or(otherwise_schedule);
  return setup;
}

void add_pipeline(const PipelineSetup& setup, Json& settings) {
  settings["chunks"] = setup.chunks;
  settings["balance"] = setup.balance;
  settings["checkpoint"] = to_text(setup.checkpoints);
  settings["schedule"] = setup.schedule.name;
}

void add_common(const CommonFlags& flags, const std::vector<c10::Device>& devices, Json& settings) {
  settings["scale"] = to_text(flags.scale);
  settings["devices"] = to_text(devices);
  settings["seed"] = flags.seed;
  if (const std::string flag = flags.changes_what_runs(); !flag.empty()) settings["changed"] = flag;
}

}  // namespace gpipe::experiments
