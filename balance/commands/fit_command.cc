#include <chrono>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "balance/choose/fit.h"
#include "balance/choose/fit_memory.h"
#include "balance/commands/commands.h"
#include "balance/commands/training_flags.h"
#include "balance/commands/worst_case.h"
#include "balance/costs/autocast.h"
#include "balance/costs/parsed_json.h"
#include "balance/memory/memory_plan.h"
#include "balance/memory/memory_plan_json.h"
#include "balance/memory/memory_plan_text.h"
#include "balance/memory/optimizer_flag.h"
#include "command/files.h"
#include "command/flag_values.h"
#include "command/interrupt.h"
#include "command/progress.h"
#include "command/run.h"
#include "command/wrap.h"
#include "command/wrong_value.h"
#include "gpipe/schedule/named_schedule.h"
#include "text/memory_size.h"

namespace gpipe::balance {
namespace {

constexpr char kPurpose[] =
    "Finds how a network must be cut to be trained on given devices: the layers of\n"
    "each, micro-batches and checkpoints. Memory is planned on the meta device; no\n"
    "device is needed.\n\n";
constexpr char kPurposeWithFamily[] =
    "Finds how a network must be cut to be trained on given devices: the layers of\n"
    "each, micro-batches and checkpoints; or the largest network of a family that\n"
    "fits. Memory is planned on the meta device; no device is needed.\n\n";
constexpr char kExitCodes[] =
    "\n\nExit codes: 0; 1 if nothing fits, or for an error while running; 2 for wrong usage;\n"
    "130 after Ctrl-C.";

constexpr int64_t kMost = int64_t{1} << 40;
constexpr int64_t kMostBatch = int64_t{1} << 24;
// The most devices, because the search takes longer for more devices.
constexpr size_t kMostDevices = 64;

struct Settings {
  CommandModel model;  // with a family, its first member
  std::optional<ModelFamily> family;
  std::optional<int64_t> most_batch;  // the family is one model with growing mini-batches
  int64_t batch = 0;                  // rows; with a family those of its first member
  std::vector<int64_t> device_bytes;
  double margin_gib = 0;
  std::string chunks;
  FitOptions options;
  ScheduleChoice schedule;
  std::string optimizer = "sgd";
  std::optional<at::ScalarType> autocast;
  std::string json;  // an absolute path
};

int64_t bytes_of(const char* flag, double gib) {
  // The condition is false for NaN, too.
  if (gib > 0 && gib <= 1e6) {
    const int64_t bytes = std::llround(gib * text::kGiB);
    if (bytes > 0) return bytes;
  }
  throw std::invalid_argument(absl::StrFormat(
      "--%s: %g GiB is not a valid amount of memory; give numbers above 0, up to 1e6", flag, gib));
}

std::vector<int64_t> parse_devices(const std::string& text) {
  std::vector<int64_t> devices;
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    double gib = 0;
    if (!absl::SimpleAtod(item, &gib)) {
      throw command::wrong_value("devices_gib", text, absl::StrCat("'", item, "' is not a number"));
    }
    devices.push_back(bytes_of("devices_gib", gib));
  }
  if (devices.size() > kMostDevices) {
    throw std::invalid_argument(absl::StrFormat(
        "--devices_gib has %d devices; at most %d are allowed", devices.size(), kMostDevices));
  }
  return devices;
}

void add_flags(Settings& settings, command::FlagSet& flags, const CommandFace&) {
  FitOptions& options = settings.options;
  flags.parsed("devices_gib", settings.device_bytes, parse_devices,
               "The memory of each device, such as 22,22,40.");
  flags.add("margin_gib", settings.margin_gib,
            "Memory to leave free on each device for what a plan cannot see: workspaces of "
            "kernels, the driver.");
  flags.add("most_batch", settings.most_batch, 1, kMostBatch,
            "Find the largest mini-batch that fits, with up to this many rows, instead of --batch. "
            "It is cut into the number of micro-batches that --chunks gives, all with the same "
            "rows.");
  flags.add("chunks", settings.chunks, chunks_help());
  flags.parsed("checkpoint", options.checkpoints(), parse_checkpoints,
               "Which micro-batches recompute their activations: always, except_last, never, any.",
               "any");
  flags.add("schedule", settings.schedule, schedule_help());
  flags.add("optimizer", settings.optimizer, optimizer_help());
  flags.add("zero_grad", options.zero_grad(), zero_grad_help());
  flags.parsed("autocast", settings.autocast, parse_autocast, autocast_help());
  flags.add("deferred_batch_norm", options.deferred_batch_norm(), deferred_batch_norm_help());
  flags.add("json", settings.json, "Write the answer as JSON to this file too.");
}

void check_layers(const Settings& settings) {
  const int64_t layers = settings.model.layers();
  if (layers >= static_cast<int64_t>(settings.device_bytes.size())) return;
  throw std::invalid_argument(absl::StrFormat(
      "--devices_gib has %d devices, but %s has %d layers%s", settings.device_bytes.size(),
      settings.model.title(), layers, one_layer_hint(layers)));
}

// Throws for a schedule with several stages on a device. Each would be planned as if it had the
// whole device.
void check_schedule(const Settings& settings) {
  const size_t devices = settings.device_bytes.size();
  const std::string& given = settings.schedule.name;
  std::vector<std::string> good;
  std::string or_plan;  // plan takes no schedule of one worker
  for (const NamedSchedule& named : named_schedules()) {
    if (named.name == given && named.shape != PlacementShape::kOneWorker) {
      or_plan = ", or use the command plan with --schedules=" + given;
    }
    const bool one_each = named.shape == PlacementShape::kOneEach ||
                          (named.shape == PlacementShape::kOneWorker && devices == 1);
    if (one_each && named.name == given) return;
    if (one_each) good.push_back(named.name);
  }
  throw command::wrong_value(
      "schedule", given,
      absl::StrFormat("it has several stages on a device, and fit plans one on each device of "
                      "--devices_gib; give %s%s",
                      absl::StrJoin(good, ", "), or_plan));
}

// Makes a family of one model, in which each micro-batch has the member's number of rows.
void read_most_batch(Settings& settings) {
  const std::optional<int64_t> most = settings.most_batch;
  if (!most) return;
  if (settings.family) {
    throw std::invalid_argument("--most_batch is for one model; leave it out with --family");
  }
  if (settings.model.batch) {
    throw std::invalid_argument(
        "--most_batch and --batch: it looks for the batch itself; leave one of them out");
  }
  const std::vector<int64_t> chunks = parse_counts("chunks", settings.chunks, *most,
                                                   absl::StrCat("the ", *most, " of --most_batch"));
  if (chunks.size() != 1) {
    throw command::wrong_value("most_batch", *most,
                               "give one number of micro-batches, such as --chunks=8; in more of "
                               "them a larger mini-batch fits, one row in each at last");
  }
  ModelFamily family;
  family.name = settings.model.name;
  family.member = [model = settings.model, chunks = chunks[0]](int64_t rows) {
    CommandModel member = model;
    member.batch = rows * chunks;
    return member;
  };
  family.most = *most / chunks[0];
  settings.model = family.member(1);
  settings.family = std::move(family);
}

void read_settings(Settings& settings, const CommandFace& face) {
  if (face.find_family) settings.family = face.find_family();
  settings.model = settings.family ? settings.family->member(1) : face.find_model("");
  read_most_batch(settings);
  settings.batch = settings.model.rows();
  if (settings.device_bytes.empty()) {
    throw std::invalid_argument("give --devices_gib=22,22,..., the memory of each device");
  }
  FitOptions& options = settings.options;
  if (settings.margin_gib != 0) options.margin(bytes_of("margin_gib", settings.margin_gib));
  for (const int64_t bytes : settings.device_bytes) {
    if (bytes > options.margin()) continue;
    throw std::invalid_argument("--margin_gib must be smaller than every device of --devices_gib");
  }
  options.chunks(parse_counts("chunks", settings.chunks, settings.batch,
                              absl::StrFormat("the %d rows of --batch", settings.batch)));
  // Without a schedule fit() uses 1F1B, for which it knows how many micro-batches suffice.
  if (settings.schedule.name != "1f1b") options.schedule(settings.schedule.make);
  options.optimizer(parse_optimizer(settings.optimizer));
  settings.json = command::FileFlags().output("json", settings.json);
  check_layers(settings);
  check_schedule(settings);
}

std::string seconds_text(double seconds) {
  return seconds < 1 ? absl::StrFormat("%.0f ms", seconds * 1e3)
                     : absl::StrFormat("%.2f s", seconds);
}

// The worst case of the experts' memory. `options` must have progress.
std::optional<WorstCase> worst_case_of(const CommandModel& model, const FitOptions& options,
                                       const Fit& fit) {
  return worst_case(model,
                    memory_options(fit, model.shared_inputs, options)
                        .progress([progress = options.progress()](int64_t, int64_t) {
                          progress("the worst case of the experts");
                        }),
                    fit.room);
}

std::string text_of(const CommandModel& model, const Settings& settings, const Fit& fit,
                    const std::optional<WorstCase>& worst) {
  return command::wrap(
             absl::StrFormat("%s: %d rows in %d micro-batch%s, checkpoint %s, %s, %s",
                             model.title(), model.rows(), fit.chunks, fit.chunks == 1 ? "" : "es",
                             to_text(fit.checkpoint), settings.schedule.name, settings.optimizer),
             80, 0, 2) +
         command::wrap(absl::StrCat("balance: ", absl::StrJoin(fit.balance, ", ")), 80, 0, 2) +
         "\n" + to_text(fit.plan) + "\n" + to_text(worst) +
         command::wrap(
             absl::StrFormat("Predicted for a step: %s, on nominal devices, from counted FLOPs; "
                             "only for comparing cuts.",
                             seconds_text(fit.step)),
             80, 0, 2);
}

nlohmann::ordered_json json_of(const CommandModel& model, const Settings& settings,
                               const Fit& fit) {
  nlohmann::ordered_json json;
  json["model"] = model.name;
  if (settings.most_batch) json["batch"] = model.rows();
  json["fits"] = fit.fits;
  json["chunks"] = fit.chunks;
  json["checkpoint"] = to_text(fit.checkpoint);
  json["step_seconds"] = fit.step;
  json["room_bytes"] = fit.room;
  json["needed_bytes"] = fit.needed;
  if (!fit.limit.empty()) json["limit"] = fit.limit;
  if (!fit.plan.devices.empty()) json["plan"] = as_json(fit.plan);
  return json;
}

struct Answer {
  std::string text;
  nlohmann::ordered_json json;
  bool fits = false;
};

// The answer of a fit that fits.
Answer answer_of(const CommandModel& model, const Settings& settings, const FitOptions& options,
                 const Fit& fit) {
  const std::optional<WorstCase> worst = worst_case_of(model, options, fit);
  Answer answer;
  answer.fits = true;
  answer.text = text_of(model, settings, fit, worst);
  answer.json["answer"] = json_of(model, settings, fit);
  add_json(worst, answer.json["answer"]);
  return answer;
}

Answer search_one(const Settings& settings, const FitOptions& options) {
  const Fit found = fit(settings.model.training(), settings.device_bytes, options);
  if (found.fits) return answer_of(settings.model, settings, options, found);
  Answer answer;
  answer.json["answer"] = json_of(settings.model, settings, found);
  answer.text = command::wrap(
      absl::StrFormat("%s does not fit: %s.", settings.model.title(), found.limit), 80, 0, 2);
  return answer;
}

Answer search_family(const Settings& settings, const FitOptions& options) {
  const ModelFamily& family = *settings.family;
  const Largest found = largest([&](int64_t member) { return family.member(member).training(); },
                                family.most, settings.device_bytes, options);
  Answer answer;
  answer.json["answer"] = nullptr;
  if (found.member > 0) {
    answer = answer_of(family.member(found.member), settings, options, found.fit);
  }
  answer.json["next"] = nullptr;
  if (found.next > 0) {
    const CommandModel next = family.member(found.next);
    const std::string rows =
        settings.most_batch ? absl::StrCat(" with ", next.rows(), " rows") : "";
    answer.text += command::wrap(
        absl::StrFormat("%s%s does not fit: %s.", next.title(), rows, found.next_fit.limit), 80, 0,
        2);
    answer.json["next"] = json_of(next, settings, found.next_fit);
  }
  return answer;
}

int run(const Settings& settings) {
  const command::InterruptScope interrupt;
  const auto begin = std::chrono::steady_clock::now();
  Answer answer;
  {
    command::Progress progress(
        interrupt, settings.family ? settings.family->title() : settings.model.title(), 0);
    int64_t done = 0;
    FitOptions options = settings.options;
    options.progress([&](const std::string& note) { progress.update(++done, note); });
    // The guard is for CUDA devices, because memory is planned for these.
    const AutocastGuard autocast(c10::kCUDA, settings.autocast);
    answer = settings.family ? search_family(settings, options) : search_one(settings, options);
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  std::cout << answer.text << std::flush;
  std::cerr << absl::StrFormat("searched for %.1f s\n", taken.count());
  if (!settings.json.empty()) {
    nlohmann::ordered_json json;
    if (!settings.most_batch) json["batch"] = settings.batch;
    json["schedule"] = settings.schedule.name;
    json["optimizer"] = settings.optimizer;
    json["device_bytes"] = settings.device_bytes;
    json["margin_bytes"] = settings.options.margin();
    json.update(answer.json);
    command::write_result(settings.json, json_text(json));
  }
  return answer.fits ? 0 : command::kErrorExitCode;
}

}  // namespace

int fit_command(int argc, const char* const* argv, const CommandFace& face) {
  return run_with(argc, argv, face.find_family ? kPurposeWithFamily : kPurpose, kExitCodes, face,
                  add_flags, read_settings, run);
}

}  // namespace gpipe::balance
