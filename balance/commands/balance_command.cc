#include <ATen/Context.h>
#include <c10/core/Device.h>
#include <torch/cuda.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "balance/commands/commands.h"
#include "balance/commands/cut_flags.h"
#include "balance/commands/training_flags.h"
#include "balance/costs/autocast.h"
#include "balance/costs/parsed_json.h"
#include "balance/costs/profile.h"
#include "balance/costs/profile_file.h"
#include "balance/costs/profiler.h"
#include "balance/step/explain.h"
#include "balance/step/explanation_json.h"
#include "balance/step/explanation_text.h"
#include "command/balance_flag.h"
#include "command/files.h"
#include "command/flag_values.h"
#include "command/interrupt.h"
#include "command/progress.h"
#include "command/run.h"
#include "command/wrong_value.h"
#include "gpipe/chunk_sizes.h"
#include "gpipe/internal/threads/cpu_threads.h"

namespace gpipe::balance {
namespace {

constexpr char kPurpose[] =
    "Cuts a network into the partitions of a pipeline: measures what each layer costs,\n"
    "finds the cut with the shortest predicted step, and explains it.\n\n";
constexpr char kExitCodes[] =
    "\n\nExit codes: 0; 1 for an error while running; 2 for wrong usage; 130 after Ctrl-C.";

constexpr int64_t kMost = int64_t{1} << 40;

struct Settings {
  std::string model_name;  // empty: not known
  CommandModel model;      // a profile's model may be unknown
  bool measured = false;   // whether the profile was measured now; false with --profile
  std::string profile;     // the file of --profile
  SavedProfile saved;      // the profile of --profile
  int64_t rows = 0;        // rows of a micro-batch
  std::optional<std::string> device_name;  // as given
  c10::Device device{c10::kCPU};
  std::optional<int64_t> threads, cores;
  std::optional<double> timeout;
  std::optional<uint64_t> seed;
  std::optional<at::ScalarType> autocast;
  bool deferred_batch_norm = false;
  std::optional<int64_t> partitions;
  std::vector<int64_t> balance;  // empty: to be found
  ScheduleChoice schedule;
  ExplainOptions options;
  std::string save_profile;  // absolute paths, as is `json`
  std::string json;
};

c10::Device parse_device(const std::string& text) {
  if (text == "cpu") return c10::kCPU;
  int64_t index = 0;
  const bool numbered =
      text.rfind("cuda:", 0) == 0 && absl::SimpleAtoi(text.substr(5), &index) && index >= 0;
  if (text != "cuda" && !numbered) {
    throw command::wrong_value("device", text,
                               "give cpu, cuda, or cuda and a number, such as cuda:1");
  }
  const int64_t devices{torch::cuda::device_count()};
  if (index >= devices) {
    throw command::wrong_value(
        "device", text,
        absl::StrFormat("this machine has %d CUDA device%s", devices, devices == 1 ? "" : "s"));
  }
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
}

std::vector<double> parse_slowness(const std::string& text) {
  std::vector<double> result;
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    double value = 0;
    if (!absl::SimpleAtod(item, &value) || !(value > 0 && value <= command::kMostReal)) {
      throw command::wrong_value(
          "slowness", text,
          absl::StrCat("give numbers above 0, up to ", command::kMostReal, ", such as 1,1,2"));
    }
    result.push_back(value);
  }
  return result;
}

void add_flags(Settings& settings, command::FlagSet& flags, const CommandFace&) {
  ExplainOptions& options = settings.options;
  flags.add("partitions", settings.partitions, 1, kMost,
            "How many partitions. Default: as many as --balance has.");
  flags.parsed(
      "balance", settings.balance, command::parse_balance,
      "Layers of each partition, such as 20,31: explains this cut. Default: the fastest found.");
  options.chunks = 8;
  flags.add("chunks", options.chunks, 1, kMost, "Micro-batches of a mini-batch.");
  flags.add("checkpoint", options.checkpoint, checkpoint_help());
  flags.add("schedule", settings.schedule, schedule_help());
  flags.add("device", settings.device_name,
            "Where layers are measured: cpu, cuda, cuda:1, ... Default: cpu.");
  flags.add("threads", settings.threads, 1, kMost,
            "Threads of a partition on the CPU, when it is measured and when it runs. Default: an "
            "equal share of this machine's for each partition.");
  flags.add("cores", settings.cores, 1, kMost,
            "How many partitions can compute at once. Default: all; measured on the CPU, as many "
            "as this machine has threads for.");
  flags.add("timeout", settings.timeout, 1e-3, command::kMostReal,
            "Seconds after which no further pass over the layers begins. Default: 10.");
  flags.add("seed", settings.seed, "Seed of the parameters and the inputs. Default: 0.");
  flags.add("profile", settings.profile, "Read this profile instead of measuring one.");
  flags.add("save_profile", settings.save_profile, "Write the measured profile to this file.");
  flags.parsed("slowness", options.slowness, parse_slowness,
               "Seconds that each partition's device takes for 1 second of the measured device, "
               "such as 1,1,2. Default: 1 for all.");
  flags.add("bandwidth_gbps", options.bandwidth, 0, command::kMostReal,
            "Gigabits per second between two partitions. Default: transfers take no time.");
  flags.add("latency_us", options.latency, 0, command::kMostReal, latency_help());
  flags.add("overhead_us", options.overhead, 0, command::kMostReal,
            "Microseconds that a forward or backward takes in addition to its layers.");
  flags.add("contention", options.contention, 1, command::kMostReal,
            "Factor by which a forward or backward is slower while other partitions compute, as "
            "they share caches and memory.");
  flags.add("param_scale", options.param_scale, 0, kMostParamScale,
            "Memory of a parameter with its gradient and the optimizer's state, in units of its "
            "size: 2 for SGD, 3 with momentum, 4 for Adam.");
  flags.parsed("autocast", settings.autocast, parse_autocast, autocast_help());
  flags.add("deferred_batch_norm", settings.deferred_batch_norm, deferred_batch_norm_help());
  flags.add("json", settings.json, "Write the explanation as JSON to this file too.");
}

// Sets the rows of a micro-batch and the number of micro-batches.
void set_rows(Settings& settings, int64_t batch) {
  command::check_chunks(settings.options.chunks, batch);
  const ChunkSizes sizes = chunk_sizes(batch, settings.options.chunks);
  settings.rows = sizes.rows;
  settings.options.chunks = sizes.micro_batches;
}

// With --profile nothing is measured, so flags about measuring would have no effect.
void refuse_flags_of_measuring(const Settings& settings) {
  std::vector<std::string> given;
  if (!settings.save_profile.empty()) given.push_back("--save_profile");
  if (settings.device_name) given.push_back("--device");
  if (settings.threads) given.push_back("--threads");
  if (settings.timeout) given.push_back("--timeout");
  if (settings.seed) given.push_back("--seed");
  if (settings.autocast) given.push_back("--autocast");
  if (settings.deferred_batch_norm) given.push_back("--deferred_batch_norm");
  if (given.empty()) return;
  throw std::invalid_argument(absl::StrFormat(
      "%s %s for a profile that is measured, not for one that is read with --profile (%s): leave "
      "one of them out",
      absl::StrJoin(given, ", "), given.size() == 1 ? "is" : "are", settings.profile));
}

void read_profile(Settings& settings) {
  refuse_flags_of_measuring(settings);
  const std::string& path = settings.profile;
  const int64_t chunks = settings.options.chunks;
  const std::optional<int64_t> batch = settings.model.batch;
  settings.saved = load_profile(path);
  if (!settings.model_name.empty() && !settings.saved.model.empty() &&
      settings.saved.model != settings.model_name) {
    throw std::invalid_argument(settings.model.given + ": " + path + " is a profile of " +
                                settings.saved.model);
  }
  if (settings.model_name.empty()) settings.model_name = settings.saved.model;
  const int64_t rows = std::max<int64_t>(settings.saved.profile.batch_rows, 1);
  const int64_t most = std::numeric_limits<int64_t>::max() / rows;
  if (chunks > most) {
    throw std::invalid_argument(absl::StrFormat(
        "--chunks=%d of micro-batches of %d rows, as %s has them, make more rows than can be "
        "counted; give --chunks=%d or fewer",
        chunks, rows, path, most));
  }
  set_rows(settings, batch.value_or(rows * chunks));
  if (settings.rows != rows) {
    throw std::invalid_argument(absl::StrFormat(
        "--batch=%d and --chunks=%d make micro-batches of %d rows, but %s has them of %d rows; "
        "give --batch=%d",
        *batch, chunks, settings.rows, path, rows, rows * chunks));
  }
}

void read_model(Settings& settings, const CommandFace& face, command::FileFlags& files) {
  // The seed also applies to the sample of a user's model.
  at::manual_seed(settings.seed.value_or(0));
  settings.model = face.find_model(settings.profile);
  settings.model_name = settings.model.saved_name;
  settings.profile = files.input("profile", settings.profile);
  settings.measured = settings.profile.empty();
  if (!settings.measured) return read_profile(settings);
  settings.device = parse_device(settings.device_name.value_or("cpu"));
  settings.model.check_values();
  set_rows(settings, settings.model.rows());
}

// The number of layers, counted on the meta device.
int64_t layers_of(const Settings& settings) {
  const auto profiled = static_cast<int64_t>(settings.saved.profile.layers.size());
  if (!settings.model.make) return profiled;
  const int64_t layers = settings.model.layers();
  if (!settings.measured && layers != profiled) {
    throw std::invalid_argument(
        absl::StrFormat("--profile: it has %d layers, but %s has %d; measure it again", profiled,
                        settings.model.title(), layers));
  }
  return layers;
}

void read_cut(Settings& settings) {
  settings.partitions = read_partitions(settings.partitions, settings.balance);
  const int64_t layers = layers_of(settings);
  const std::string name = !settings.model_name.empty() ? settings.model_name
                           : settings.model.make        ? settings.model.title()
                                                        : "the profile";
  check_cut(*settings.partitions, settings.balance, layers, name);
}

void read_options(Settings& settings) {
  ExplainOptions& options = settings.options;
  const int64_t partitions = *settings.partitions;
  if (!options.slowness.empty() && static_cast<int64_t>(options.slowness.size()) != partitions) {
    throw std::invalid_argument(
        absl::StrFormat("--slowness=%s has %d numbers, but there are %d partitions",
                        absl::StrJoin(options.slowness, ","), options.slowness.size(), partitions));
  }
  options.schedule = settings.schedule.make;
  (void)options.schedule(partitions, options.chunks);  // throws for too large a schedule
  // So far these have the units of the flags.
  options.bandwidth = options.bandwidth * 1e9 / 8;
  options.latency *= 1e-6;
  options.overhead *= 1e-6;
  if (settings.measured && settings.device.is_cpu()) {
    const int64_t all = internal::default_cpu_threads();
    if (!settings.threads) settings.threads = std::max<int64_t>(all / partitions, 1);
    if (!settings.cores) settings.cores = std::max<int64_t>(all / *settings.threads, 1);
  }
  options.cores = settings.cores.value_or(0);
}

void read_settings(Settings& settings, const CommandFace& face) {
  command::FileFlags files;
  read_model(settings, face, files);
  read_cut(settings);
  read_options(settings);
  settings.save_profile = files.output("save_profile", settings.save_profile);
  settings.json = files.output("json", settings.json);
}

Profile measure(const Settings& settings, const command::InterruptScope& interrupt) {
  const c10::Device device = settings.device;
  const double timeout = settings.timeout.value_or(10.0);
  at::manual_seed(settings.seed.value_or(0));
  std::cerr << absl::StrFormat("measuring %s: %d rows on %s", settings.model.saved_title(),
                               settings.rows, device.str());
  if (settings.threads) std::cerr << ", threads: " << *settings.threads;
  std::cerr << std::endl;
  torch::nn::Sequential model = settings.model.make();
  interrupt.check();
  model->to(device);
  const Tensors sample = settings.model.inputs(settings.rows, device);

  command::Progress progress(interrupt, "seconds", std::max<int64_t>(std::llround(timeout), 1));
  const auto on_pass = [&](const TimeProgress& time_progress) {
    progress.update(static_cast<int64_t>(time_progress.seconds),
                    absl::StrFormat("pass %d", time_progress.passes));
  };
  const AutocastGuard autocast(device.type(), settings.autocast);
  return profile(model, sample,
                 ProfileOptions()
                     .timeout(timeout)
                     .shared_inputs(settings.model.shared_inputs)
                     .deferred_batch_norm(settings.deferred_batch_norm)
                     .cpu_threads(settings.threads.value_or(0))
                     .progress(on_pass)
                     .after_each_layer([&] { interrupt.check(); }));
}

std::string json_of(const Settings& settings, const Explanation& explanation) {
  nlohmann::ordered_json json = as_json(explanation);
  json["model"] = settings.model_name;
  json["checkpoint"] = to_text(settings.options.checkpoint);
  json["schedule"] = settings.schedule.name;
  return json_text(json);
}

int run(const Settings& settings) {
  const command::InterruptScope interrupt;
  Profile measured;
  if (settings.measured) {
    measured = measure(settings, interrupt);
    if (!settings.save_profile.empty()) {
      save_profile(settings.save_profile, {settings.model_name, measured});
      std::cerr << "written: " << settings.save_profile << std::endl;
    }
  }
  interrupt.check();
  const Profile& profile = settings.measured ? measured : settings.saved.profile;
  const std::vector<int64_t> best = best_balance(profile, *settings.partitions, settings.options);
  const Explanation explanation =
      explain(profile, settings.balance.empty() ? best : settings.balance, settings.options);
  std::cout << "balance: " << absl::StrJoin(explanation.balance(), ",") << "\n\n"
            << to_text(explanation);
  if (!settings.balance.empty() && settings.balance != best) {
    std::cout << absl::StrFormat(
        "The fastest cut found takes %.0f%% of that time:\n  --balance=%s\n",
        100 * explain(profile, best, settings.options).step / std::max(explanation.step, 1e-300),
        absl::StrJoin(best, ","));
  }
  std::cout << std::flush;
  command::write_result(settings.json, json_of(settings, explanation));
  interrupt.check();
  return 0;
}

}  // namespace

int balance_command(int argc, const char* const* argv, const CommandFace& face) {
  return run_with(argc, argv, kPurpose, kExitCodes, face, add_flags, read_settings, run);
}

}  // namespace gpipe::balance
