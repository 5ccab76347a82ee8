#include <algorithm>
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
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "balance/commands/commands.h"
#include "balance/commands/training_flags.h"
#include "balance/commands/worst_case.h"
#include "balance/costs/autocast.h"
#include "balance/costs/parsed_json.h"
#include "balance/memory/link_memory.h"
#include "balance/memory/memory_plan.h"
#include "balance/memory/memory_plan_json.h"
#include "balance/memory/memory_plan_text.h"
#include "balance/memory/optimizer_flag.h"
#include "command/balance_flag.h"
#include "command/files.h"
#include "command/flag_values.h"
#include "command/interrupt.h"
#include "command/progress.h"
#include "command/run.h"
#include "command/wrap.h"
#include "command/wrong_value.h"
#include "gpipe/chunk_sizes.h"
#include "text/memory_size.h"

namespace gpipe::balance {
namespace {

constexpr char kPurpose[] =
    "Plans the memory of pipelined training: runs two steps of a network on the meta\n"
    "device, where tensors have no memory, and counts what each device would hold.\n\n";
constexpr char kExitCodes[] =
    "\n\nExit codes: 0; 1 for an error while running; 2 for wrong usage; 130 after Ctrl-C.";

constexpr int64_t kMost = int64_t{1} << 30;

struct Settings {
  CommandModel model;
  std::optional<torch::nn::Sequential> network;
  int64_t batch = 0;
  ScheduleChoice schedule;
  std::string optimizer = "sgd";
  std::optional<at::ScalarType> autocast;
  MemoryPlanOptions options = MemoryPlanOptions(std::vector<int64_t>{});
  bool links = false;
  std::string json, svg;  // absolute paths
};

int64_t parse_capacity(const std::string& text) {
  double gib = 0;
  if (!absl::SimpleAtod(text, &gib) || !(gib >= 0 && gib <= 1e6)) {
    throw command::wrong_value("device_gib", text, "give a number from 0 to 1e6");
  }
  const int64_t capacity = std::llround(gib * text::kGiB);
  if (gib > 0 && capacity == 0) {
    throw command::wrong_value("device_gib", text,
                               "that is less than a byte; give 1e-9 or more, or 0 for no limit");
  }
  return capacity;
}

c10::DeviceType parse_type(const std::string& text) {
  if (text == "cuda") return c10::kCUDA;
  if (text == "cpu") return c10::kCPU;
  throw command::wrong_value("device", text, "give cuda or cpu");
}

void add_flags(Settings& settings, command::FlagSet& flags, const CommandFace&) {
  MemoryPlanOptions& options = settings.options;
  flags.parsed("balance", options.balance(), command::parse_balance,
               "Layers of each partition, such as 20,31. Default: all in one.");
  flags.add("chunks", options.chunks(), 1, kMost, "Micro-batches of a mini-batch.");
  flags.add("checkpoint", options.checkpoint(), checkpoint_help());
  flags.add("schedule", settings.schedule, schedule_help());
  flags.add("optimizer", settings.optimizer, optimizer_help());
  flags.add("zero_grad", options.zero_grad(), zero_grad_help());
  flags.parsed("device_gib", options.capacity(), parse_capacity,
               "GiB of each device, for the model of LibTorch's allocator. Default: 0, no limit.");
  flags.parsed("device", options.device_type(), parse_type,
               "The type of the devices: cuda or cpu. Fused attention, LSTM and dropout keep "
               "different tensors on the two.",
               "cuda");
  flags.parsed("autocast", settings.autocast, parse_autocast, autocast_help());
  flags.add("deferred_batch_norm", options.deferred_batch_norm(), deferred_batch_norm_help());
  flags.add("links", settings.links,
            "Say also what links between GPUs may hold, with a process for each device.");
  flags.add("json", settings.json, "Write the plan as JSON to this file too.");
  flags.add("svg", settings.svg, "Draw what each device holds during a step to this file.");
}

void read_settings(Settings& settings, const CommandFace& face) {
  settings.model = face.find_model("");
  settings.batch = settings.model.rows();
  if (settings.links && settings.options.device_type() == c10::kCPU) {
    throw std::invalid_argument(
        "--links with --device=cpu: links join GPUs; plan for --device=cuda, or leave out --links");
  }
  command::FileFlags files;
  settings.json = files.output("json", settings.json);
  settings.svg = files.output("svg", settings.svg);

  settings.network = settings.model.make_on_meta();
  const auto layers = static_cast<int64_t>((*settings.network)->size());
  std::vector<int64_t>& balance = settings.options.balance();
  if (balance.empty()) balance = {layers};
  command::check_balance_sum(balance, layers, absl::StrJoin(balance, ","), settings.model.title(),
                             one_layer_hint(layers));
  // Throws if the schedule cannot have these sizes.
  (void)settings.schedule.make(
      static_cast<int64_t>(balance.size()),
      chunk_sizes(settings.batch, settings.options.chunks()).micro_batches);
  settings.options.schedule(settings.schedule.make).optimizer(parse_optimizer(settings.optimizer));
}

// Returns the options of the plan with a callback that shows the progress. `progress`: is made when
// the first action has run.
MemoryPlanOptions with_progress(const Settings& settings, const command::InterruptScope& interrupt,
                                std::optional<command::Progress>& progress) {
  MemoryPlanOptions options = settings.options;
  options.shared_inputs(settings.model.shared_inputs);
  return options.progress([&](int64_t done, int64_t total) {
    if (!progress) progress.emplace(interrupt, settings.model.title(), total);
    progress->update(done);
  });
}

MemoryPlan plan(const Settings& settings, const command::InterruptScope& interrupt) {
  std::optional<command::Progress> progress;
  const MemoryPlanOptions options = with_progress(settings, interrupt, progress);
  const Training training = settings.model.training();
  return memory_plan(*settings.network, training.inputs, training.targets, training.loss, options);
}

std::optional<WorstCase> worst_case_of(const Settings& settings,
                                       const command::InterruptScope& interrupt) {
  std::optional<command::Progress> progress;
  return worst_case(settings.model, with_progress(settings, interrupt, progress));
}

// What links between devices may hold, by device; not set without --links.
using Links = std::optional<std::vector<LinkMemory>>;

// Returns the plan as JSON, with the settings that it was made for.
std::string json_of(const Settings& settings, const MemoryPlan& plan, const Links& links,
                    const std::optional<WorstCase>& worst) {
  nlohmann::ordered_json json;
  json["model"] = settings.model.name;
  json["batch"] = settings.batch;
  json["chunks"] = settings.options.chunks();
  json["checkpoint"] = to_text(settings.options.checkpoint());
  json["schedule"] = settings.schedule.name;
  json["optimizer"] = settings.optimizer;
  json.update(as_json(plan));
  if (links) {
    for (const LinkMemory& each : *links) {
      json["links"].push_back(
          {{"message_bytes", each.ahead + each.waiting}, {"buffer_bytes", each.buffers}});
    }
  }
  add_json(worst, json);
  return json_text(json);
}

// What links may hold, as a paragraph.
std::string link_text(const std::vector<LinkMemory>& links) {
  int64_t most = 0;
  for (const LinkMemory& each : links) {
    most = std::max({most, each.ahead + each.waiting, each.buffers});
  }
  const text::MemoryUnit unit = text::memory_unit(most);
  std::vector<std::string> messages, buffers;
  for (const LinkMemory& each : links) {
    messages.push_back(text::in_unit(each.ahead + each.waiting, unit));
    buffers.push_back(text::in_unit(each.buffers, unit));
  }
  return command::wrap(
      absl::StrFormat("Links between GPUs, with a process for each device, take at most so many "
                      "%s besides: %s for messages, %s for NCCL's buffers (by device).",
                      unit.name, absl::StrJoin(messages, ", "), absl::StrJoin(buffers, ", ")),
      80, 0, 0);
}

int run(const Settings& settings) {
  const command::InterruptScope interrupt;
  const int64_t micro_batches =
      chunk_sizes(settings.batch, settings.options.chunks()).micro_batches;
  if (micro_batches < settings.options.chunks()) {
    std::cerr << absl::StrFormat("a mini-batch of %d rows gives %d micro-batches, not %d\n",
                                 settings.batch, micro_batches, settings.options.chunks());
  }
  const AutocastGuard autocast(settings.options.device_type(), settings.autocast);
  const MemoryPlan memory_plan = plan(settings, interrupt);
  std::cout << to_text(memory_plan) << std::flush;
  Links links;
  if (settings.links) links = link_memory(memory_plan.trace, memory_plan.device_of_stage);
  if (links) std::cout << link_text(*links) << std::flush;
  const std::optional<WorstCase> worst = worst_case_of(settings, interrupt);
  std::cout << to_text(worst) << std::flush;
  command::write_result(settings.json, json_of(settings, memory_plan, links, worst));
  const std::string title = absl::StrFormat(
      "%s, balance %s, batch %d, chunks %d, checkpoint %s, %s", settings.model.title(),
      absl::StrJoin(settings.options.balance(), ","), settings.batch, settings.options.chunks(),
      to_text(settings.options.checkpoint()), settings.schedule.name);
  if (!settings.svg.empty()) command::write_result(settings.svg, to_svg(memory_plan, title));
  return 0;
}

}  // namespace

int memory_plan_command(int argc, const char* const* argv, const CommandFace& face) {
  return run_with(argc, argv, kPurpose, kExitCodes, face, add_flags, read_settings, run);
}

}  // namespace gpipe::balance
