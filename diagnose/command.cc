// The command //diagnose:command: finds out why training is slow in a pipeline on this machine's
// CPU.

#include <ATen/Context.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "balance/balance.h"
#include "balance/commands/command_model.h"
#include "balance/commands/cut_flags.h"
#include "balance/commands/training_flags.h"
#include "balance/commands/zoo_model.h"
#include "balance/costs/profiler.h"
#include "command/balance_flag.h"
#include "command/files.h"
#include "command/flag_values.h"
#include "command/flags.h"
#include "command/interrupt.h"
#include "command/progress.h"
#include "command/run.h"
#include "command/wrap.h"
#include "diagnose/diagnose.h"
#include "diagnose/diagnosis_text.h"
#include "gpipe/gpipe.h"
#include "gpipe/setup.h"

namespace gpipe {
namespace {

using balance::CommandModel;

constexpr char kUsage[] =
    "Says why training is slow in a pipeline on this machine's CPU, and what to change:\n"
    "measures steps of it, the plain model, and the layers. Run nothing else meanwhile.\n\n"
    "  tools/bazel run //diagnose:command -- --model=unet:2,8 --image_size=64 \\\n"
    "      --partitions=2\n"
    "  tools/bazel run //diagnose:command -- --model=hf:FOLDER,128 --batch=8 \\\n"
    "      --chunks=4 --partitions=2\n\n"
    "Exit codes: 0; 1 for an error while running; 2 for wrong usage; 130 after Ctrl-C.";

constexpr int64_t kMost = int64_t{1} << 30;

struct Settings : PipelineSetup {  // without a balance if the best cut is to be measured
  balance::ZooFlags zoo;
  CommandModel model;
  bool is_of_folder = false;
  bool has_weights = false;  // whether the folder of the model has weights
  std::optional<int64_t> partitions;
  Checkpoint checkpoint = Checkpoint::kExceptLast;
  int64_t threads = 0;
  double seconds = 1;
  uint64_t seed = 0;
  std::string json;  // an absolute path
};

void add_flags(Settings& settings, command::FlagSet& flags) {
  settings.zoo.batch = 32;
  settings.chunks = 8;
  settings.zoo.add_to(flags);
  flags.add("partitions", settings.partitions, 1, kMost,
            "How many partitions. Default: as many as --balance has.");
  flags.parsed("balance", settings.balance, command::parse_balance,
               "Layers of each partition, such as 20,31. Default: cut by measured times.");
  flags.add("chunks", settings.chunks, 1, kMost, "Micro-batches of a mini-batch.");
  flags.add("checkpoint", settings.checkpoint, balance::checkpoint_help());
  flags.add("schedule", settings.schedule, balance::schedule_help());
  flags.add("threads", settings.threads, 0, 1024,
            "Threads of a partition. Default: 0, an equal share.");
  flags.add("seconds", settings.seconds, 1e-3, 1e6,
            "Seconds of each measurement; there are about ten.");
  flags.add("seed", settings.seed, "Seed of the data, and of weights that no file has.");
  flags.add("json", settings.json, "Write the diagnosis as JSON to this file too.");
}

void read_settings(Settings& settings) {
  settings.model = balance::given_zoo_model(settings.zoo, /*weights=*/true);
  settings.is_of_folder = settings.model.name.rfind("hf:", 0) == 0;
  settings.has_weights = !balance::folder_with_weights(settings.model.name).empty();
  command::check_chunks(settings.chunks, settings.model.rows());
  settings.partitions = balance::read_partitions(settings.partitions, settings.balance);
  balance::check_cut(*settings.partitions, settings.balance, settings.model.layers(),
                     settings.model.title());
  // Throws if the schedule cannot have these sizes.
  (void)settings.schedule.make(*settings.partitions, settings.chunks);
  settings.json = command::FileFlags().output("json", settings.json);
}

// A sentence that says whether the weights are the folder's or random ones.
std::string weights_text(const Settings& settings) {
  if (!settings.is_of_folder) return "";
  if (settings.has_weights) return "Its weights are the folder's.";
  return std::string(
             "Its weights are random, as the folder has none: times are those of the real "
             "ones") +
         (settings.model.make_worst == nullptr
              ? "."
              : ", except that a trained router sends its tokens to other experts.");
}

int run(const Settings& settings) {
  const command::InterruptScope interrupt;
  at::manual_seed(settings.seed);
  const CommandModel& model = settings.model;
  std::cerr << absl::StrFormat("measuring %s: %d rows in %d partitions\n", model.title(),
                               model.rows(), *settings.partitions);
  const torch::nn::Sequential network = model.make();
  interrupt.check();
  const Tensors inputs = model.inputs(model.rows(), c10::kCPU);
  const Tensors targets = model.targets(model.rows(), c10::kCPU);
  std::optional<command::Progress> progress;
  const auto show = [&](const std::string& what, int64_t done, int64_t all) {
    if (!progress) progress.emplace(interrupt, model.title(), all);
    progress->update(done, what);
  };
  PipelineSetup setup = settings;
  if (setup.balance.empty()) {
    setup.balance = balance::balance_by_time(
        *settings.partitions, network, inputs,
        balance::TimeOptions()
            .timeout(settings.seconds)
            .micro_batch_rows((model.rows() + settings.chunks - 1) / settings.chunks)
            .cpu_threads(settings.threads)
            .recompute(settings.checkpoint != Checkpoint::kNever)
            .progress([&](const balance::TimeProgress&) { interrupt.check(); }));
  }
  setup.checkpoint_all(settings.checkpoint);
  const std::vector<c10::Device> devices(setup.balance.size(), c10::kCPU);
  const GPipe pipe(network, pipe_options(setup, devices)
                                .placement(setup.schedule.placement(setup.stages()))
                                .cpu_threads_per_stage(settings.threads));
  const Diagnosis diagnosis = diagnose(pipe, inputs, targets, model.loss,
                                       DiagnoseOptions()
                                           .step(step_options(setup))
                                           .seconds(settings.seconds)
                                           .progress(show)
                                           .check([&] { interrupt.check(); }));
  progress.reset();
  std::cout << command::wrap(
                   absl::StrCat(model.title(), ", on this machine's CPU. ", weights_text(settings)),
                   80, 0, 2)
            << to_text(diagnosis) << std::flush;
  command::write_result(settings.json, to_json(diagnosis));
  interrupt.check();
  return 0;
}

}  // namespace
}  // namespace gpipe

int main(int argc, char** argv) {
  gpipe::Settings settings;
  gpipe::command::FlagSet flags;
  gpipe::add_flags(settings, flags);
  const auto prepare = [&]() -> gpipe::command::Work {
    gpipe::read_settings(settings);
    return [&] { return gpipe::run(settings); };
  };
  return gpipe::command::run_command(argc, argv, gpipe::kUsage, prepare, flags);
}
