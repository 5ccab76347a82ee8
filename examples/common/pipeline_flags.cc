#include "examples/common/pipeline_flags.h"

#include <torch/cuda.h>

#include <stdexcept>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "balance/commands/training_flags.h"
#include "command/flag_values.h"
#include "command/wrong_value.h"
#include "examples/distributed/layout.h"
#include "gpipe/schedule/verify.h"

namespace examples {
namespace {

namespace command = gpipe::command;
using Json = nlohmann::ordered_json;

constexpr int64_t kMost = int64_t{1} << 30;

std::vector<c10::Device> parse_devices(const std::string& text) {
  std::vector<c10::Device> devices;
  for (const absl::string_view name : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    try {
      devices.emplace_back(std::string(name));
    } catch (const c10::Error& error) {
      throw command::wrong_value("devices", text, error.what_without_backtrace());
    }
    const c10::Device device = devices.back();
    const int64_t count = device.is_cuda() ? int64_t{torch::cuda::device_count()} : 1;
    if ((!device.is_cpu() && !device.is_cuda()) || device.index() >= count) {
      throw command::wrong_value(
          "devices", text,
          absl::StrFormat("there is no %s here; give cpu or one of %d CUDA devices", device.str(),
                          int64_t{torch::cuda::device_count()}));
    }
  }
  return devices;
}

// Refuses schedules that do not add up gradients in the order of the micro-batches, if there are
// several replicas. With --groups this also counts for a single replica.
void check_order_of_sums(const PipelineSettings& settings) {
  if (settings.replicas == 1 && settings.groups == 0) return;
  if (adds_in_order(settings.schedule.make)) return;
  throw std::invalid_argument(absl::StrFormat(
      "--schedule=%s does not add up gradients in the order of the micro-batches, which --replicas "
      "and --groups need; give fill-drain, or any other schedule",
      settings.schedule.name));
}

void check_replicas(PipelineSettings& settings, int64_t batch) {
  const int64_t chunks = settings.chunks, replicas = settings.replicas;
  const std::optional<int64_t> groups = settings.groups_given;
  settings.groups = groups.value_or(0);
  if (chunks % replicas != 0) {
    throw command::wrong_value(
        "replicas", replicas,
        absl::StrFormat("they cannot share the --chunks=%d micro-batches of a mini-batch equally; "
                        "give chunks that are a multiple of them",
                        chunks));
  }
  if (groups && chunks % *groups != 0) {
    throw command::wrong_value(
        "groups", *groups,
        absl::StrFormat("--chunks=%d micro-batches cannot be cut into as many equal groups; give "
                        "chunks that are a multiple of them",
                        chunks));
  }
  const int64_t each = settings.groups / replicas;
  if (groups && replicas > 1 && (*groups % replicas != 0 || (each & (each - 1)) != 0)) {
    throw command::wrong_value(
        "groups", *groups,
        absl::StrFormat("each of --replicas=%d has 1, 2, 4, 8, ... of them, a part of the tree in "
                        "which they are added up; give that many times %d",
                        replicas, replicas));
  }
  const auto last = gpipe::World(nullptr, replicas - 1, replicas).grid(replicas, 1);
  if (last.rows(batch, chunks).size() == 0) {
    throw command::wrong_value(
        "replicas", replicas,
        absl::StrFormat("--chunks=%d micro-batches of --batch=%d rows have %d rows each, as long "
                        "as there are any, and the last replica would never have one; give more "
                        "rows, or fewer chunks or replicas",
                        chunks, batch, (batch + chunks - 1) / chunks));
  }
  check_order_of_sums(settings);
}

}  // namespace

void add_pipeline_flags(PipelineSettings& settings, command::FlagSet& flags) {
  flags.add("schedule", settings.schedule, gpipe::balance::schedule_help());
  flags.add("chunks", settings.chunks, 1, kMost,
            "Micro-batches of a mini-batch, of all replicas together.");
  flags.add("replicas", settings.replicas, 1, kMost,
            "Replicas of the pipeline, which share the processes.");
  flags.add("groups", settings.groups_given, 1, kMost,
            "Groups of micro-batches, in which gradients are added up: with the same number, and "
            "the same --chunks, any number of replicas gives the same bits. Default: as many as "
            "replicas; without replicas, none.");
  flags.add("zero", settings.zero,
            "Each replica keeps the optimizer's states of its share of the parameters (ZeRO, stage "
            "1). The bits are the same.");
  flags.add("checkpoint", settings.checkpoint, gpipe::balance::checkpoint_help());
  flags.add("threads", settings.threads, 0, 1024,
            "Threads of a partition on the CPU. The same number gives the same bits. Default: 0, "
            "an equal share.");
  flags.parsed("devices", settings.devices, parse_devices,
               "A device for each partition, such as cuda:0,cuda:1 or cpu,cpu. Default: every CUDA "
               "device in order; without one, the CPU. Over processes: the one device of this "
               "process, by default the CPU; cuda is the one with the process's number on its "
               "machine.");
}

void check_pipeline(PipelineSettings& settings, int64_t batch) {
  command::check_chunks(settings.chunks, batch);
  check_replicas(settings, batch);
}

Json pipeline_bits(const PipelineSettings& settings, int64_t threads) {
  // Gradients are added up in as many groups as there are replicas, unless --groups is given.
  const int64_t groups = settings.groups > 0     ? settings.groups
                         : settings.replicas > 1 ? settings.replicas
                                                 : 0;
  Json bits;
  bits["chunks"] = settings.chunks;
  bits["groups"] = groups > 0 ? Json(groups) : Json("none");
  bits["schedule"] = settings.chunks == 1 || adds_in_order(settings.schedule.make)
                         ? "gradients added up in the order of the micro-batches"
                         : "gradients added up in another order (" + settings.schedule.name + ")";
  bits["threads"] = threads;
  return bits;
}

gpipe::GPipe make_pipeline(const PipelineSettings& settings, const torch::nn::Sequential& model,
                           const std::vector<int64_t>& balance, const gpipe::World& world) {
  const auto stages = static_cast<int64_t>(balance.size());
  return gpipe::GPipe(
      model, gpipe::GPipeOptions(balance)
                 .placement(distributed::placement_over(world, settings.schedule, stages))
                 .chunks(settings.chunks)
                 .groups(settings.groups)
                 .checkpoint(settings.checkpoint)
                 .cpu_threads_per_stage(settings.threads)
                 .devices(own_devices(settings.devices, world, torch::cuda::device_count()))
                 .world(world));
}

std::vector<std::string> idle_flags(const PipelineSettings& settings, const c10::Device& device) {
  std::vector<std::string> lines;
  if (settings.zero && settings.replicas == 1) {
    lines.emplace_back(
        "--zero does nothing without replicas, which would share the optimizer's states: give "
        "--replicas=2, or more");
  }
  if (settings.threads > 0 && !device.is_cpu()) {
    lines.push_back(absl::StrFormat("--threads=%d does nothing: the stages are on %s",
                                    settings.threads, device.str()));
  }
  return lines;
}

bool adds_in_order(const gpipe::ScheduleGenerator& schedule) {
  // Every schedule supports 4 stages, and 2 micro-batches suffice to see the order.
  constexpr int64_t kStages = 4, kMicroBatches = 2;
  return schedule(kStages, kMicroBatches).verify(gpipe::Sends::kBuffered).ascending;
}

std::vector<c10::Device> own_devices(const std::vector<c10::Device>& devices,
                                     const gpipe::World& world, int64_t count) {
  const bool is_for_each = world.size() > 1 && devices.size() == 1 && devices.front().is_cuda() &&
                           !devices.front().has_index();
  if (!is_for_each) return devices;
  const int64_t number = world.local_rank();
  if (number >= count) {
    throw std::invalid_argument(absl::StrFormat(
        "--devices=cuda: each process has the device with its number on its machine, and there is "
        "no cuda:%d here, but %d of them; start fewer processes, or say which, as in "
        "--devices=cuda:0",
        number, count));
  }
  return {c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(number))};
}

}  // namespace examples
