#include "balance/commands/plan_command.h"

#include <ATen/Context.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "balance/choose/pipeline_plan.h"
#include "balance/choose/plan.h"
#include "balance/commands/command_model.h"
#include "balance/commands/training_flags.h"
#include "balance/commands/worst_case.h"
#include "balance/costs/autocast.h"
#include "balance/costs/parsed_json.h"
#include "balance/costs/profile_file.h"
#include "balance/memory/memory_plan.h"
#include "balance/memory/optimizer_flag.h"
#include "command/files.h"
#include "command/flag_values.h"
#include "command/interrupt.h"
#include "command/progress.h"
#include "command/run.h"
#include "command/wrong_value.h"
#include "gpipe/internal/threads/cpu_threads.h"
#include "gpipe/schedule/named_schedule.h"

namespace {

// The command that saves profiles, for --help.
std::string& profiling() {
  static std::string command;
  return command;
}

}  // namespace

ABSL_FLAG(std::optional<int64_t>, devices, std::nullopt, "How many devices there are, all alike.");
ABSL_FLAG(std::string, memory, "",
          "The memory of each device, such as 22GiB or 500MiB; a number alone is bytes. Default: "
          "no limit.");
ABSL_FLAG(
    std::string, chunks, "",
    "Numbers of micro-batches to choose from, such as 8,16. Default: all powers of two up "
    "to the batch, and the batch; with batch norms no number that makes a micro-batch of one row.");
ABSL_FLAG(std::string, checkpoint, "any",
          "Which micro-batches may recompute their activations: always, except_last, never, any.");
ABSL_FLAG(std::string, schedules, "",
          "Schedules to choose from, such as 1f1b,zb-h1; search looks for an order of its own. "
          "Default: all that give the same bits (not gpipe), and search. There are " +
              gpipe::schedule_names() + ".");
ABSL_FLAG(std::string, stages_per_device, "1,2,4",
          "How many stages a device may have: V-shaped schedules have 2, looped ones any number.");
ABSL_FLAG(std::string, optimizer, "sgd", gpipe::balance::optimizer_help());
ABSL_FLAG(std::string, measure, "",
          "Measure the layers on this device of this machine: cpu, for a pipeline on the CPU. "
          "Default: count their operations, for nominal devices, which need not exist.");
ABSL_FLAG(std::string, profile, "",
          "Use these saved profiles (" + profiling() +
              " --save_profile), such as p4.json,p8.json, instead "
              "of measuring: each is for micro-batches with its number of rows.");
ABSL_FLAG(std::optional<double>, timeout, std::nullopt,
          "Seconds to measure each size of micro-batches. Default: 2.");
ABSL_FLAG(std::optional<int64_t>, threads, std::nullopt,
          "Threads of a device on the CPU. Default: an equal share of this machine's.");
ABSL_FLAG(std::optional<int64_t>, cores, std::nullopt,
          "How many devices can compute at once. Default: all; on the CPU, as many as this machine "
          "has threads for.");
ABSL_FLAG(std::optional<double>, tflops, std::nullopt,
          "10^12 operations a second of a nominal device. Default: 14.");
ABSL_FLAG(std::optional<double>, memory_gbps, std::nullopt,
          "Gigabytes a second of a nominal device's memory. Default: 900.");
ABSL_FLAG(double, bandwidth_gbps, 0.0,
          "Gigabits per second between two devices. Default: transfers take no time.");
ABSL_FLAG(double, latency_us, 0.0, "Microseconds that a transfer takes in addition to its bytes.");
ABSL_FLAG(std::string, autocast, "", gpipe::balance::autocast_help());
ABSL_FLAG(bool, deferred_batch_norm, false, gpipe::balance::deferred_batch_norm_help());
ABSL_FLAG(std::string, output, "",
          "Write the plan to this file: as text if its name ends in .txt, otherwise as JSON.");
ABSL_FLAG(std::string, json, "", "Write everything that is printed to this file, as JSON.");

namespace gpipe::balance {
namespace {

constexpr char kPurpose[] =
    "Chooses how a network is trained on given devices: balance, placement, micro-batches,\n"
    "checkpoints of each partition and schedule, together. Prints the choice, the next best, what\n"
    "each setting alone is worth, and a proof.\n\n";
constexpr char kExitCodes[] =
    "\n\nExit codes: 0; 1 if nothing fits, or for an error while running; 2 for wrong usage;\n"
    "130 after Ctrl-C.";

constexpr int64_t kMost = int64_t{1} << 40;
// The most devices, because a search takes longer for more devices.
constexpr int64_t kMostDevices = 64;

struct Settings {
  CommandModel model;
  int64_t batch = 0;
  bool measured = false;
  PlanOptions options{1};
  std::optional<at::ScalarType> autocast;
  std::string output, json;  // absolute paths
};

int64_t parse_bytes(const std::string& text) {
  static const std::map<std::string, double> kUnits = {
      {"", 1.0},       {"b", 1.0},  {"kib", 0x1p10}, {"mib", 0x1p20}, {"gib", 0x1p30},
      {"tib", 0x1p40}, {"kb", 1e3}, {"mb", 1e6},     {"gb", 1e9},     {"tb", 1e12}};
  const size_t end = text.find_first_not_of("0123456789.");
  const std::string unit = absl::AsciiStrToLower(
      end == std::string::npos ? "" : std::string(absl::StripAsciiWhitespace(text.substr(end))));
  const auto found = kUnits.find(unit);
  double number = 0;
  const bool is_number = absl::SimpleAtod(text.substr(0, end), &number);
  const double bytes = found == kUnits.end() ? 0.0 : number * found->second;
  // A small number without a unit is refused, because no device has so few bytes: the unit was
  // forgotten.
  const bool is_bare = unit.empty() && bytes < 0x1p20;
  if (!is_number || is_bare || !(bytes >= 1 && bytes <= 1e18)) {
    throw command::wrong_value("memory", text, "give a size such as 22GiB or 500MiB");
  }
  return std::llround(bytes);
}

constexpr double kLeast = 1e-9;  // the smallest value of flags that must be above 0

void read_choices(Settings& settings) {
  const std::optional<int64_t> devices =
      command::in_range("devices", absl::GetFlag(FLAGS_devices), 1, kMostDevices);
  if (!devices) throw std::invalid_argument("give --devices=NUMBER, how many devices there are");
  const int64_t layers = settings.model.layers();
  if (*devices > layers) {
    throw command::wrong_value(
        "devices", *devices,
        absl::StrFormat("%s has %d layers only%s", settings.model.saved_title(), layers,
                        one_layer_hint(layers)));
  }
  PlanOptions& options = settings.options;
  options.devices(*devices);
  const std::string memory = absl::GetFlag(FLAGS_memory);
  if (!memory.empty()) options.memory(parse_bytes(memory));
  options.chunks(parse_counts("chunks", absl::GetFlag(FLAGS_chunks), settings.batch));
  options.checkpoints(parse_checkpoints(absl::GetFlag(FLAGS_checkpoint)));
  options.schedules(parse_schedules(absl::GetFlag(FLAGS_schedules)));
  std::vector<int64_t> stages =
      parse_counts("stages_per_device", absl::GetFlag(FLAGS_stages_per_device), 64);
  if (stages.empty())
    throw command::wrong_value("stages_per_device", "", "give numbers, such as 1,2");
  options.stages_per_device(std::move(stages));
  options.optimizer(parse_optimizer(absl::GetFlag(FLAGS_optimizer)));
  options.deferred_batch_norm(absl::GetFlag(FLAGS_deferred_batch_norm));
  settings.autocast = parse_autocast(absl::GetFlag(FLAGS_autocast));
}

// Reads where the times come from: profiles, measurements or counted operations, of which only one
// may be asked for.
void read_times(Settings& settings, const CommandFace& face, command::FileFlags& file_flags) {
  PlanOptions& options = settings.options;
  const std::string measure = absl::GetFlag(FLAGS_measure);
  if (!measure.empty() && measure != "cpu") {
    throw command::wrong_value(
        "measure", measure,
        "give cpu; for other devices measure a profile there with " + face.profiling +
            " --device=cuda --save_profile=FILE, and give it with --profile");
  }
  const std::string paths = absl::GetFlag(FLAGS_profile);
  if (!measure.empty() && !paths.empty()) {
    throw std::invalid_argument("--measure and --profile: leave one of them out");
  }
  settings.measured = !measure.empty();
  if (settings.measured) settings.model.check_values();
  const auto only_for = [](const char* flag, bool given, const char* what) {
    if (given) throw std::invalid_argument(absl::StrFormat("--%s is for %s", flag, what));
  };
  if (!settings.measured) {
    only_for("timeout", absl::GetFlag(FLAGS_timeout).has_value(), "--measure=cpu");
    only_for("threads", absl::GetFlag(FLAGS_threads).has_value(), "--measure=cpu");
  }
  if (settings.measured || !paths.empty()) {
    only_for("tflops", absl::GetFlag(FLAGS_tflops).has_value(), "times that are counted");
    only_for("memory_gbps", absl::GetFlag(FLAGS_memory_gbps).has_value(), "times that are counted");
  }
  NominalDevice speed;
  if (const auto value = absl::GetFlag(FLAGS_tflops)) {
    speed.flops_per_second = command::at_least("tflops", *value, kLeast) * 1e12;
  }
  if (const auto value = absl::GetFlag(FLAGS_memory_gbps)) {
    speed.bytes_per_second = command::at_least("memory_gbps", *value, kLeast) * 1e9;
  }
  options.speed(speed);

  ExplainOptions machine;
  machine.bandwidth =
      command::at_least("bandwidth_gbps", absl::GetFlag(FLAGS_bandwidth_gbps), 0) * 1e9 / 8;
  machine.latency = command::at_least("latency_us", absl::GetFlag(FLAGS_latency_us), 0) * 1e-6;
  machine.cores = command::in_range("cores", absl::GetFlag(FLAGS_cores), 1, kMost).value_or(0);
  if (settings.measured) {
    const int64_t all = internal::default_cpu_threads();
    const int64_t share = std::max<int64_t>(all / options.devices(), 1);
    const int64_t threads =
        command::in_range("threads", absl::GetFlag(FLAGS_threads), 1, 1024).value_or(share);
    if (machine.cores == 0) machine.cores = std::max<int64_t>(all / threads, 1);
    options.cpu_threads(threads).device_type(c10::kCPU);
    options.timeout(
        command::at_least("timeout", absl::GetFlag(FLAGS_timeout).value_or(2.0), kLeast));
  }
  options.machine(machine);
  if (paths.empty()) return;

  std::vector<Profile> profiles;
  std::vector<int64_t> chunks;
  const std::vector<std::string> files = absl::StrSplit(paths, ',');
  for (const std::string& path : files) {
    if (path.empty()) {
      throw command::wrong_value("profile", paths, "a file name is missing next to a comma");
    }
    SavedProfile saved = load_profile(file_flags.input("profile", path));
    const std::string& name = settings.model.saved_name;
    if (!saved.model.empty() && !name.empty() && saved.model != name) {
      throw std::invalid_argument(settings.model.given + ": " + path + " is a profile of " +
                                  saved.model);
    }
    const int64_t rows = saved.profile.batch_rows;
    if (rows < 1 || settings.batch % rows != 0) {
      throw std::invalid_argument(absl::StrFormat(
          "--profile: %s has micro-batches of %d rows, which do not divide --batch=%d", path, rows,
          settings.batch));
    }
    chunks.push_back(settings.batch / rows);
    profiles.push_back(std::move(saved.profile));
  }
  if (!options.chunks().empty() && options.chunks() != chunks) {
    throw std::invalid_argument("--chunks and --profile: profiles of those rows make --chunks=" +
                                absl::StrJoin(chunks, ",") + "; leave --chunks out");
  }
  options.profiles(std::move(profiles)).chunks(std::move(chunks));
}

Settings read_settings(const CommandFace& face) {
  Settings settings;
  settings.model = face.find_model();
  settings.batch = command::in_range("batch", settings.model.rows(), 1, kMost);
  read_choices(settings);
  command::FileFlags file_flags;
  read_times(settings, face, file_flags);
  settings.output = file_flags.output("output", absl::GetFlag(FLAGS_output));
  settings.json = file_flags.output("json", absl::GetFlag(FLAGS_json));
  return settings;
}

PlanReport make_plan(const Settings& settings, const command::InterruptScope& interrupt) {
  command::Progress progress(std::cerr, settings.model.saved_title(), 0,
                             command::terminal_options(STDERR_FILENO));
  int64_t done = 0;
  std::string last;
  PlanOptions options = settings.options;
  options.progress([&](const std::string& note) {
    interrupt.check();
    if (note != last) ++done;
    last = note;
    progress.update(done, note);
  });
  options.targets(settings.model.targets(settings.batch, at::kMeta))
      .loss(settings.model.loss)
      .shared_inputs(settings.model.shared_inputs);
  if (settings.measured) {
    at::manual_seed(0);
    options.make(settings.model.make);
    const torch::nn::Sequential model = settings.model.make();
    return plan(model, settings.model.inputs(settings.batch, at::kCPU), options);
  }
  return plan(settings.model.make_on_meta(), settings.model.inputs(settings.batch, at::kMeta),
              options);
}

std::optional<WorstCase> worst_case_of(const Settings& settings, const PipelinePlan& plan,
                                       const command::InterruptScope& interrupt) {
  const PlanOptions& options = settings.options;
  const std::vector<int64_t> room(plan.devices.size(), options.memory());
  return worst_case(settings.model,
                    MemoryPlanOptions(plan.balance)
                        .chunks(plan.chunks)
                        .shared_inputs(plan.shared_inputs)
                        .deferred_batch_norm(plan.deferred_batch_norm)
                        .partition_checkpoints(plan.checkpoints)
                        .schedule([schedule = plan.schedule](int64_t, int64_t) { return schedule; })
                        .device_of_stage(plan.placement().worker_of_stage())
                        .optimizer(options.optimizer())
                        .zero_grad(options.zero_grad())
                        .device_type(options.device_type())
                        .progress([&](int64_t, int64_t) { interrupt.check(); }),
                    options.memory() > 0 ? room : std::vector<int64_t>());
}

std::string json_of(const PlanReport& report, const std::optional<WorstCase>& worst) {
  const std::string text = to_json(report);
  if (!worst) return text;
  auto json = nlohmann::ordered_json::parse(text);
  add_json(worst, json);
  return json_text(json);
}

int run(const Settings& settings) {
  const command::InterruptScope interrupt;
  const AutocastGuard autocast(settings.options.device_type(), settings.autocast);
  PlanReport report = make_plan(settings, interrupt);
  report.plan.model = settings.model.saved_name;
  const std::optional<WorstCase> worst = worst_case_of(settings, report.plan, interrupt);
  std::cout << to_text(report) << to_text(worst) << std::flush;
  const bool as_text = settings.output.size() > 4 &&
                       settings.output.compare(settings.output.size() - 4, 4, ".txt") == 0;
  if (!settings.output.empty()) {
    command::write_result(settings.output,
                          as_text ? plan_to_text(report.plan) : plan_to_json(report.plan));
  }
  command::write_result(settings.json, json_of(report, worst));
  interrupt.check();
  return 0;
}

}  // namespace

int plan_command(int argc, const char* const* argv, const CommandFace& face) {
  profiling() = face.profiling;
  return command::run_command(
      argc, argv, kPurpose + face.examples + kExitCodes, [&] { return read_settings(face); }, run,
      face.absent);
}

}  // namespace gpipe::balance
