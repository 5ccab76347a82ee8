#include <ATen/Context.h>

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

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "balance/choose/pipeline_plan.h"
#include "balance/choose/plan.h"
#include "balance/commands/commands.h"
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
  std::optional<int64_t> devices, threads, cores;
  std::string chunks, optimizer = "sgd", measure, profile;
  std::optional<double> timeout, tflops, memory_gbps, host_gbps, offload_percent;
  std::optional<int64_t> devices_per_host_link, host_memory;
  ExplainOptions machine;
  PlanOptions options{1};
  std::optional<at::ScalarType> autocast;
  std::string output, json;  // absolute paths

  bool measured() const { return !measure.empty(); }
};

int64_t parse_size(const std::string& flag, const std::string& text,
                   const char* advice = "give a size such as 22GiB or 500MiB") {
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
    throw command::wrong_value(flag, text, advice);
  }
  return std::llround(bytes);
}

int64_t parse_bytes(const std::string& text) { return parse_size("memory", text); }

int64_t parse_host_memory(const std::string& text) {
  if (text == "auto") return 0;
  return parse_size("offload", text,
                    "give a size such as 8GiB, or auto; for no offloads leave out --host_gbps");
}

std::vector<int64_t> parse_stages(const std::string& text) {
  return parse_counts("stages_per_device", text, 64);
}

constexpr double kLeast = 1e-9;  // the smallest value of flags that must be above 0

void add_flags(Settings& settings, command::FlagSet& flags, const CommandFace& face) {
  PlanOptions& options = settings.options;
  flags.add("devices", settings.devices, 1, kMostDevices, "How many devices there are, all alike.");
  flags.parsed("memory", options.memory(), parse_bytes,
               "The memory of each device, such as 22GiB or 500MiB; a number alone is bytes. "
               "Default: no limit.");
  flags.add("chunks", settings.chunks, chunks_help());
  flags.parsed(
      "checkpoint", options.checkpoints(), parse_checkpoints,
      "Which micro-batches may recompute their activations: always, except_last, never, any.",
      "any");
  flags.parsed("schedules", options.schedules(), parse_schedules,
               "Schedules to choose from, such as 1f1b,zb-h1; search looks for an order of its "
               "own. Default: all that give the same bits (not gpipe), and search. There are " +
                   schedule_names() + ".");
  flags.parsed(
      "stages_per_device", options.stages_per_device(), parse_stages,
      "How many stages a device may have: V-shaped schedules have 2, looped ones any number.",
      "1,2,4");
  flags.add("optimizer", settings.optimizer, optimizer_help());
  flags.add("measure", settings.measure,
            "Measure the layers on this device of this machine: cpu, for a pipeline on the CPU. "
            "Default: count their operations, for nominal devices, which need not exist.");
  flags.add("profile", settings.profile,
            "Use these saved profiles (" + face.profiling +
                " --save_profile), such as p4.json,p8.json, instead of measuring: each is for "
                "micro-batches with its number of rows.");
  flags.add("timeout", settings.timeout, kLeast, command::kMostReal,
            "Seconds to measure each size of micro-batches. Default: 2.");
  flags.add("threads", settings.threads, 1, 1024,
            "Threads of a device on the CPU. Default: an equal share of this machine's.");
  flags.add("cores", settings.cores, 1, kMost,
            "How many devices can compute at once. Default: all; on the CPU, as many as this "
            "machine has threads for.");
  flags.add("tflops", settings.tflops, kLeast, command::kMostReal,
            "10^12 operations a second of a nominal device. Default: 14.");
  flags.add("memory_gbps", settings.memory_gbps, kLeast, command::kMostReal,
            "Gigabytes (10^9 bytes) a second of a nominal device's memory. Default: 900.");
  flags.add("bandwidth_gbps", settings.machine.bandwidth, 0, command::kMostReal,
            "Gigabits (not gigabytes) a second between two devices. Default: transfers take no "
            "time.");
  flags.add("latency_us", settings.machine.latency, 0, command::kMostReal, latency_help());
  flags.add("host_gbps", settings.host_gbps, kLeast, command::kMostReal,
            "Gigabytes (10^9 bytes, not gigabits) a second between a device and the host, in each "
            "direction. With it, activations may wait on the host where a faster choice fits then, "
            "or nothing without. Default: none do.");
  flags.add("devices_per_host_link", settings.devices_per_host_link, 1, kMostDevices,
            "How many devices share a link of that speed: each gets an equal part. Default: 1.");
  flags.parsed("offload", settings.host_memory, parse_host_memory,
               "The most pinned memory of the host for each stage, such as 8GiB, or auto: as much "
               "as pays. Default: auto.");
  flags.add("offload_percent", settings.offload_percent, 0, command::kMostReal,
            "Make the memory of the choice as low as offloads can, with a step that is at most so "
            "many percent longer, and look for no faster choice that fits only with them. Default: "
            "offloads are for what does not fit.");
  flags.parsed("autocast", settings.autocast, parse_autocast, autocast_help());
  flags.add("deferred_batch_norm", options.deferred_batch_norm(), deferred_batch_norm_help());
  flags.add("output", settings.output,
            "Write the plan to this file: as text if its name ends in .txt, otherwise as JSON.");
  flags.add("json", settings.json, "Write everything that is printed to this file, as JSON.");
}

void read_choices(Settings& settings) {
  const std::optional<int64_t> devices = settings.devices;
  if (!devices) throw std::invalid_argument("give --devices=NUMBER, how many devices there are");
  const int64_t layers = settings.model.layers();
  if (*devices > layers) {
    throw command::wrong_value(
        "devices", *devices,
        absl::StrFormat("%s has %d layers only%s", settings.model.saved_title(), layers,
                        one_layer_hint(layers)));
  }
  settings.options.devices(*devices)
      .chunks(parse_counts("chunks", settings.chunks, settings.batch))
      .optimizer(parse_optimizer(settings.optimizer));
}

// Reads what offloads need to know.
void read_host_link(Settings& settings) {
  if (!settings.host_gbps) {
    const std::string flag = settings.offload_percent         ? "offload_percent"
                             : settings.devices_per_host_link ? "devices_per_host_link"
                             : settings.host_memory           ? "offload"
                                                              : "";
    if (flag.empty()) return;
    throw std::invalid_argument(
        "--" + flag + ": offloads need to know the link to the host; give --host_gbps, too");
  }
  if (settings.measured()) {
    throw std::invalid_argument(
        "--host_gbps and --measure=cpu: the CPU's memory is the host's, so nothing can wait there; "
        "leave one of them out");
  }
  const auto devices = static_cast<double>(settings.devices_per_host_link.value_or(1));
  settings.machine.host_bandwidth = *settings.host_gbps * 1e9 / devices;
  settings.options.host_memory(settings.host_memory.value_or(0));
  if (settings.offload_percent) settings.options.least_memory(*settings.offload_percent / 100);
}

// Reads where the times come from: profiles, measurements or counted operations, of which only one
// may be asked for.
void read_times(Settings& settings, const CommandFace& face, command::FileFlags& file_flags) {
  PlanOptions& options = settings.options;
  const std::string& measure = settings.measure;
  if (!measure.empty() && measure != "cpu") {
    throw command::wrong_value(
        "measure", measure,
        "give cpu; for other devices measure a profile there with " + face.profiling +
            " --device=cuda --save_profile=FILE, and give it with --profile");
  }
  const std::string& paths = settings.profile;
  if (!measure.empty() && !paths.empty()) {
    throw std::invalid_argument("--measure and --profile: leave one of them out");
  }
  const bool measured = settings.measured();
  if (measured) settings.model.check_values();
  const auto only_for = [](const char* flag, bool given, const char* what) {
    if (given) throw std::invalid_argument(absl::StrFormat("--%s is for %s", flag, what));
  };
  if (!measured) {
    only_for("timeout", settings.timeout.has_value(), "--measure=cpu");
    only_for("threads", settings.threads.has_value(), "--measure=cpu");
  }
  if (measured || !paths.empty()) {
    only_for("tflops", settings.tflops.has_value(), "times that are counted");
    only_for("memory_gbps", settings.memory_gbps.has_value(), "times that are counted");
  }
  NominalDevice speed;
  if (settings.tflops) speed.flops_per_second = *settings.tflops * 1e12;
  if (settings.memory_gbps) speed.bytes_per_second = *settings.memory_gbps * 1e9;
  options.speed(speed);

  ExplainOptions& machine = settings.machine;
  // So far these have the units of the flags.
  machine.bandwidth = machine.bandwidth * 1e9 / 8;
  machine.latency *= 1e-6;
  machine.cores = settings.cores.value_or(0);
  read_host_link(settings);
  if (measured) {
    const int64_t all = internal::default_cpu_threads();
    const int64_t share = std::max<int64_t>(all / options.devices(), 1);
    const int64_t threads = settings.threads.value_or(share);
    if (machine.cores == 0) machine.cores = std::max<int64_t>(all / threads, 1);
    options.cpu_threads(threads).device_type(c10::kCPU).timeout(settings.timeout.value_or(2.0));
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

void read_settings(Settings& settings, const CommandFace& face) {
  settings.model = face.find_model("");
  settings.batch = settings.model.rows();
  read_choices(settings);
  command::FileFlags file_flags;
  read_times(settings, face, file_flags);
  settings.output = file_flags.output("output", settings.output);
  settings.json = file_flags.output("json", settings.json);
}

PlanReport make_plan(const Settings& settings, const command::InterruptScope& interrupt) {
  command::Progress progress(interrupt, settings.model.saved_title(), 0);
  int64_t done = 0;
  std::string last;
  PlanOptions options = settings.options;
  options.progress([&](const std::string& note) {
    if (note != last) ++done;
    last = note;
    progress.update(done, note);
  });
  options.targets(settings.model.targets(settings.batch, at::kMeta))
      .loss(settings.model.loss)
      .shared_inputs(settings.model.shared_inputs);
  if (settings.measured()) {
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
  return run_with(argc, argv, kPurpose, kExitCodes, face, add_flags, read_settings, run);
}

}  // namespace gpipe::balance
