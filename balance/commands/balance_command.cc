#include "balance/commands/balance_command.h"

#include <ATen/Context.h>
#include <c10/core/Device.h>
#include <torch/cuda.h>
#include <unistd.h>

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

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "balance/commands/command_model.h"
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
#include "gpipe/cut_sizes.h"
#include "gpipe/internal/threads/cpu_threads.h"

ABSL_FLAG(std::optional<int64_t>, partitions, std::nullopt,
          "How many partitions. Default: as many as --balance has.");
ABSL_FLAG(
    std::string, balance, "",
    "Layers of each partition, such as 20,31: explains this cut. Default: the fastest found.");
ABSL_FLAG(int64_t, chunks, 8, "Micro-batches of a mini-batch.");
ABSL_FLAG(gpipe::Checkpoint, checkpoint, gpipe::Checkpoint::kExceptLast,
          gpipe::balance::checkpoint_help());
ABSL_FLAG(gpipe::ScheduleChoice, schedule, gpipe::balance::one_f_one_b(),
          gpipe::balance::schedule_help());
ABSL_FLAG(std::optional<std::string>, device, std::nullopt,
          "Where layers are measured: cpu, cuda, cuda:1, ... Default: cpu.");
ABSL_FLAG(std::optional<int64_t>, threads, std::nullopt,
          "Threads of a partition on the CPU, when it is measured and when it runs. Default: an "
          "equal share of this machine's for each partition.");
ABSL_FLAG(std::optional<int64_t>, cores, std::nullopt,
          "How many partitions can compute at once. Default: all; measured on the CPU, as many as "
          "this machine has threads for.");
ABSL_FLAG(std::optional<double>, timeout, std::nullopt,
          "Seconds after which no further pass over the layers begins. Default: 10.");
ABSL_FLAG(std::optional<uint64_t>, seed, std::nullopt,
          "Seed of the parameters and the inputs. Default: 0.");
ABSL_FLAG(std::string, profile, "", "Read this profile instead of measuring one.");
ABSL_FLAG(std::string, save_profile, "", "Write the measured profile to this file.");
ABSL_FLAG(std::string, slowness, "",
          "Seconds that each partition's device takes for 1 second of the measured device, such "
          "as 1,1,2. Default: 1 for all.");
ABSL_FLAG(double, bandwidth_gbps, 0.0,
          "Gigabits per second between two partitions. Default: transfers take no time.");
ABSL_FLAG(double, latency_us, 0.0, "Microseconds that a transfer takes in addition to its bytes.");
ABSL_FLAG(double, overhead_us, 0.0,
          "Microseconds that a forward or backward takes in addition to its layers.");
ABSL_FLAG(double, contention, 1.0,
          "Factor by which a forward or backward is slower while other partitions compute, as they "
          "share caches and memory.");
ABSL_FLAG(double, param_scale, 2.0,
          "Memory of a parameter with its gradient and the optimizer's state, in units of its "
          "size: 2 for SGD, 3 with momentum, 4 for Adam.");
ABSL_FLAG(std::string, autocast, "", gpipe::balance::autocast_help());
ABSL_FLAG(bool, deferred_batch_norm, false, gpipe::balance::deferred_batch_norm_help());
ABSL_FLAG(std::string, json, "", "Write the explanation as JSON to this file too.");

namespace gpipe::balance {
namespace {

using command::at_least;
using command::in_range;

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
  SavedProfile saved;      // the profile of --profile
  int64_t rows = 0;        // rows of a micro-batch
  c10::Device device = c10::kCPU;
  int64_t threads = 0;
  double timeout = 0;
  uint64_t seed = 0;
  std::optional<at::ScalarType> autocast;
  int64_t partitions = 0;
  std::vector<int64_t> balance;  // empty: to be found
  ExplainOptions options;
  std::string schedule;      // the name of the schedule in `options`
  std::string save_profile;  // absolute paths
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

std::vector<double> parse_slowness(const std::string& text, int64_t partitions) {
  std::vector<double> result;
  if (text.empty()) return result;
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    double value = 0;
    if (!absl::SimpleAtod(item, &value) || !(value > 0 && value <= command::kMostReal)) {
      throw command::wrong_value(
          "slowness", text,
          absl::StrCat("give numbers above 0, up to ", command::kMostReal, ", such as 1,1,2"));
    }
    result.push_back(value);
  }
  if (static_cast<int64_t>(result.size()) != partitions) {
    throw std::invalid_argument(
        absl::StrFormat("--slowness=%s has %d numbers, but there are %d partitions", text,
                        result.size(), partitions));
  }
  return result;
}

// Sets the rows of a micro-batch and the number of micro-batches.
void cut_batch(Settings& settings, int64_t batch, int64_t chunks) {
  if (chunks > batch) {
    throw command::wrong_value(
        "chunks", chunks,
        absl::StrFormat("a mini-batch of %d rows cannot be cut into more micro-batches than rows; "
                        "give --chunks=%d, which is what a pipeline would make of it",
                        batch, batch));
  }
  const CutSizes cut = cut_sizes(batch, chunks);
  settings.rows = cut.rows;
  settings.options.chunks = cut.micro_batches;
}

// With --profile nothing is measured, so flags about measuring would have no effect.
void refuse_flags_of_measuring(const std::string& path) {
  (void)in_range("threads", absl::GetFlag(FLAGS_threads), 1, kMost);
  std::vector<std::string> given;
  if (!absl::GetFlag(FLAGS_save_profile).empty()) given.push_back("--save_profile");
  if (absl::GetFlag(FLAGS_device)) given.push_back("--device");
  if (absl::GetFlag(FLAGS_threads)) given.push_back("--threads");
  if (absl::GetFlag(FLAGS_timeout)) given.push_back("--timeout");
  if (absl::GetFlag(FLAGS_seed)) given.push_back("--seed");
  if (!absl::GetFlag(FLAGS_autocast).empty()) given.push_back("--autocast");
  if (absl::GetFlag(FLAGS_deferred_batch_norm)) given.push_back("--deferred_batch_norm");
  if (given.empty()) return;
  throw std::invalid_argument(absl::StrFormat(
      "%s %s for a profile that is measured, not for one that is read with --profile (%s): leave "
      "one of them out",
      absl::StrJoin(given, ", "), given.size() == 1 ? "is" : "are", path));
}

void read_profile(Settings& settings, const std::string& path, int64_t chunks,
                  std::optional<int64_t> batch) {
  refuse_flags_of_measuring(path);
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
  cut_batch(settings, batch.value_or(rows * chunks), chunks);
  if (settings.rows != rows) {
    throw std::invalid_argument(absl::StrFormat(
        "--batch=%d and --chunks=%d make micro-batches of %d rows, but %s has them of %d rows; "
        "give --batch=%d",
        *batch, chunks, settings.rows, path, rows, rows * chunks));
  }
}

void read_model(Settings& settings, const CommandFace& face, command::FileFlags& files) {
  // The seed also applies to the sample of a user's model.
  settings.seed = absl::GetFlag(FLAGS_seed).value_or(0);
  at::manual_seed(settings.seed);
  settings.model = face.find_model();
  settings.model_name = settings.model.saved_name;
  const std::string path = files.input("profile", absl::GetFlag(FLAGS_profile));
  const int64_t chunks = in_range("chunks", absl::GetFlag(FLAGS_chunks), 1, kMost);
  const std::optional<int64_t> batch = in_range("batch", settings.model.batch, 1, kMost);
  settings.measured = path.empty();
  if (!settings.measured) return read_profile(settings, path, chunks, batch);
  settings.model.check_values();
  cut_batch(settings, settings.model.rows(), chunks);
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
  settings.balance = command::parse_balance(absl::GetFlag(FLAGS_balance));
  settings.partitions = read_partitions(absl::GetFlag(FLAGS_partitions), settings.balance, kMost);
  const int64_t layers = layers_of(settings);
  const std::string name = !settings.model_name.empty() ? settings.model_name
                           : settings.model.make        ? settings.model.title()
                                                        : "the profile";
  check_cut(settings.partitions, settings.balance, absl::StrJoin(settings.balance, ","), layers,
            name);
}

void read_options(Settings& settings) {
  ExplainOptions& options = settings.options;
  options.checkpoint = absl::GetFlag(FLAGS_checkpoint);
  ScheduleChoice schedule = absl::GetFlag(FLAGS_schedule);
  options.schedule = std::move(schedule.make);
  settings.schedule = std::move(schedule.name);
  options.slowness = parse_slowness(absl::GetFlag(FLAGS_slowness), settings.partitions);
  options.bandwidth = at_least("bandwidth_gbps", absl::GetFlag(FLAGS_bandwidth_gbps), 0) * 1e9 / 8;
  options.latency = at_least("latency_us", absl::GetFlag(FLAGS_latency_us), 0) * 1e-6;
  options.overhead = at_least("overhead_us", absl::GetFlag(FLAGS_overhead_us), 0) * 1e-6;
  options.contention = at_least("contention", absl::GetFlag(FLAGS_contention), 1);
  options.param_scale =
      at_least("param_scale", absl::GetFlag(FLAGS_param_scale), 0, kMostParamScale);
  options.cores = in_range("cores", absl::GetFlag(FLAGS_cores), 1, kMost).value_or(0);
  (void)options.schedule(settings.partitions, options.chunks);  // throws for too large a schedule

  settings.device = parse_device(absl::GetFlag(FLAGS_device).value_or("cpu"));
  settings.autocast = parse_autocast(absl::GetFlag(FLAGS_autocast));
  settings.threads = in_range("threads", absl::GetFlag(FLAGS_threads), 1, kMost).value_or(0);
  settings.timeout = at_least("timeout", absl::GetFlag(FLAGS_timeout).value_or(10.0), 1e-3);
  if (!settings.measured || !settings.device.is_cpu()) return;
  const int64_t all = internal::default_cpu_threads();
  if (settings.threads == 0) settings.threads = std::max<int64_t>(all / settings.partitions, 1);
  if (options.cores == 0) options.cores = std::max<int64_t>(all / settings.threads, 1);
}

Settings read_settings(const CommandFace& face) {
  Settings settings;
  command::FileFlags files;
  read_model(settings, face, files);
  read_cut(settings);
  read_options(settings);
  settings.save_profile = files.output("save_profile", absl::GetFlag(FLAGS_save_profile));
  settings.json = files.output("json", absl::GetFlag(FLAGS_json));
  return settings;
}

Profile measure(const Settings& settings, const command::InterruptScope& interrupt) {
  at::manual_seed(settings.seed);
  std::cerr << absl::StrFormat("measuring %s: %d rows on %s", settings.model.saved_title(),
                               settings.rows, settings.device.str());
  if (settings.threads > 0) std::cerr << ", threads: " << settings.threads;
  std::cerr << std::endl;
  torch::nn::Sequential model = settings.model.make();
  interrupt.check();
  model->to(settings.device);
  const Tensors sample = settings.model.inputs(settings.rows, settings.device);

  command::Progress progress(std::cerr, "seconds",
                             std::max<int64_t>(std::llround(settings.timeout), 1),
                             command::terminal_options(STDERR_FILENO));
  const auto on_pass = [&](const TimeProgress& time_progress) {
    interrupt.check();
    progress.update(static_cast<int64_t>(time_progress.seconds),
                    absl::StrFormat("pass %d", time_progress.passes));
  };
  const AutocastGuard autocast(settings.device.type(), settings.autocast);
  return profile(model, sample,
                 ProfileOptions()
                     .timeout(settings.timeout)
                     .shared_inputs(settings.model.shared_inputs)
                     .deferred_batch_norm(absl::GetFlag(FLAGS_deferred_batch_norm))
                     .cpu_threads(settings.threads)
                     .progress(on_pass)
                     .after_each_layer([&] { interrupt.check(); }));
}

std::string json_of(const Settings& settings, const Explanation& explanation) {
  nlohmann::ordered_json json = as_json(explanation);
  json["model"] = settings.model_name;
  json["checkpoint"] = to_text(settings.options.checkpoint);
  json["schedule"] = settings.schedule;
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
  const std::vector<int64_t> best = best_balance(profile, settings.partitions, settings.options);
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
  return command::run_command(
      argc, argv, kPurpose + face.examples + kExitCodes, [&] { return read_settings(face); }, run,
      face.absent);
}

}  // namespace gpipe::balance
