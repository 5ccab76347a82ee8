// U-Net timeline: torchgpipe's ablation. A U-Net on four devices without each of the optimizations
// that a pipeline has, and the table beside torchgpipe's. See README.md in this folder.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "balance/memory/optimizer_flag.h"
#include "command/flag_values.h"
#include "experiments/frame/flags.h"
#include "experiments/frame/program.h"
#include "experiments/frame/variants.h"
#include "experiments/rows/layer_costs.h"
#include "experiments/rows/memory_run.h"
#include "experiments/rows/row.h"
#include "experiments/rows/scaled_unet.h"
#include "experiments/rows/simulated_speed.h"
#include "experiments/rows/simulation_flags.h"
#include "experiments/rows/speed_run.h"
#include "experiments/unet_timeline/published.h"
#include "experiments/unet_timeline/simulated.h"
#include "gpipe/timeline/time_split.h"
#include "models/by_name.h"
#include "text/memory_size.h"

ABSL_FLAG(std::optional<int64_t>, steps, std::nullopt,
          "Steps of an epoch. Default: the scale's (smoke 4, small 4, full 16, as published).");

namespace gpipe::experiments {
namespace {

constexpr int64_t kMostSteps = int64_t{1} << 30;
constexpr char kUsage[] =
    "Trains a U-Net in a pipeline of four partitions without the optimizations that\n"
    "torchgpipe's ablation takes away, and prints images per second, utilization and\n"
    "memory beside those that torchgpipe published.\n\n"
    "  tools/bazel run //experiments/unet_timeline\n"
    "  tools/bazel run //experiments/unet_timeline -- --ways=planned,simulated\n"
    "  tools/bazel run //experiments/unet_timeline -- --ways=measured \\\n"
    "    --experiment=dep-str-ptl --trace=timeline.svg\n\n"
    "Experiments: baseline, dep-x-x, dep-str-x, dep-str-ptl.\n"
    "Ctrl-C stops after the current step with what was reached (exit code 130).";

// Images per second of the plain network on one of the same GPUs (torchgpipe, U-Net speed).
constexpr double kPublishedOneDevice = 28.5;

// The settings of simulated rows.
struct Simulated {
  SimulatedMachine machine;
  balance::NominalDevice device;
  std::optional<balance::SavedProfile> profile;
};

Simulated simulated_flags() {
  const SimulationSettings flags = simulation_flags();
  Simulated simulated = {flags.machine, flags.device, std::nullopt};
  if (!flags.profile.empty()) {
    simulated.profile =
        load_profile_of(flags.profile, models::model_by_name("unet:5,64"), "U-Net (5, 64)");
  }
  return simulated;
}

// A note on what of torchgpipe's row our row does not reproduce.
std::string note_of(const Row& row, Origin way) {
  std::string note;
  if (row.ablation.early_recomputes) {
    note +=
        "; in place of torchgpipe without its dependencies, whose autograd engine recomputes ahead "
        "of backwards: the last partition recomputes all micro-batches before its first backward "
        "(in other partitions the engine's order depends on the host's timing, and is not "
        "reproduced)";
  }
  if (!row.ablation.copy_streams && way == Origin::kPlanned) {
    note += "; the streams of copies make no difference to a plan";
  }
  return note;
}

Row settle(const CommonFlags& flags, const std::string& name, Origin way) {
  Row row;
  row.name = name;
  row.ablation = find_variant(ablations(), name).ablation;
  row.make_target = unet_target;
  const bool full = way != Origin::kMeasured || flags.scale == Scale::kFull;
  row.network = full                           ? scaled_unet(5, 5, 64, 192)
                : flags.scale == Scale::kSmoke ? scaled_unet(3, 2, 8, 64)
                                               : scaled_unet(5, 2, 16, 96);
  row.batch_size = full ? kPublishedBatch : 32;
  if (way != Origin::kMeasured) {
    row.cut_as_published(published_balance(), kPublishedChunks, Checkpoint::kExceptLast);
    return row;
  }
  row.batch_size = flags.batch_size.value_or(row.batch_size);
  row.cut(flags, published_balance(), kPublishedChunks, Checkpoint::kExceptLast,
          published_schedule());
  row.run_here(flags);
  return row;
}

Json settings_of(const Row& row) {
  Json json = row.settings();
  const Ablation ablation = row.whole_ablation();
  json["direct_skips"] = ablation.direct_skips;
  json["copy_streams"] = ablation.copy_streams;
  json["early_recomputes"] = ablation.early_recomputes;
  add_pipeline(row.setup, json);
  return json;
}

std::optional<int64_t> steps_flag() {
  return command::in_range("steps", absl::GetFlag(FLAGS_steps), 1, kMostSteps);
}

SpeedOptions speed_options(const Row& row, const CommonFlags& flags) {
  const bool full = flags.scale == Scale::kFull;
  SpeedOptions options;
  options.title = row.name;
  options.samples = row.batch_size * steps_flag().value_or(full ? kPublishedSteps : 4);
  options.epochs = flags.epochs.value_or(full ? 10 : flags.scale == Scale::kSmoke ? 3 : 5);
  options.skip_epochs = flags.skip_epochs;
  options.utilization = std::all_of(row.devices.begin(), row.devices.end(),
                                    [](c10::Device device) { return device.is_cpu(); });
  options.trace = flags.trace;
  options.memory = true;
  options.explain = flags.explain;
  return options;
}

void measure(const CommonFlags& flags, const Row& row, Outcome& outcome,
             const RunContext& context) {
  const SpeedOptions options = speed_options(row, flags);
  outcome.note = absl::StrFormat("%s, %d epochs of %d steps, %s", row.describe(), options.epochs,
                                 options.samples / row.batch_size, count_devices(row.devices)) +
                 note_of(row, Origin::kMeasured);
  if (!options.utilization) {
    outcome.note += "; no utilization: the workers' times are not those of the devices";
  } else if (!row.ablation.copy_streams) {
    outcome.note += "; between CPU stages nothing is copied, so the streams make no difference";
  }
  outcome.settings = settings_of(row);
  outcome.settings["samples"] = options.samples;
  outcome.settings["epochs"] = options.epochs;
  outcome.settings["skip_epochs"] = options.skip_epochs;
  add_common(flags, row.devices, outcome.settings);
  *context.out << "\n" << row.name << ": " << outcome.note << std::endl;
  measure_speed(row, options, context, outcome);
}

void plan(const Row& row, Outcome& outcome, const RunContext& context) {
  outcome.note = row.describe() + note_of(row, Origin::kPlanned);
  outcome.settings = settings_of(row);
  outcome.settings["scale"] = to_text(Scale::kFull);
  *context.out << "\n" << row.name << " (planned): " << outcome.note << std::endl;
  const MemoryRun run = {row, balance::parse_optimizer("sgd"), /*zero_grad=*/true, nullptr};
  const MemoryFigures figures = plan_memory(run, /*capacity=*/0, context).figures;
  outcome.figures["memory"] = text::in_gib(figures.total());
  Json& devices = outcome.settings["gib_of_devices"] = Json::array();
  for (const int64_t bytes : figures.peaks) devices.push_back(text::in_gib(bytes));
  outcome.origin = Origin::kPlanned;
}

// The profile of a micro-batch, whose times are those of the profile that was given, or such that
// the plain network is as fast as published on the published device.
balance::Profile profile_of(const Row& row, const Simulated& simulated) {
  const int64_t rows = (row.batch_size + row.setup.chunks - 1) / row.setup.chunks;
  if (simulated.profile) return measured_costs(simulated.profile->profile)(rows);
  const models::NamedModel& model = row.network.model;
  const LayerCosts costs = nominal_costs(model.make, model.row, simulated.device);
  const double factor = factor_for({"baseline", /*batch_size=*/40}, /*samples=*/10000,
                                   kPublishedOneDevice, costs, simulated.machine);
  return scaled(costs, factor)(rows);
}

void simulate(const Simulated& simulated, const Row& row, Outcome& outcome,
              const RunContext& context) {
  const std::string times =
      simulated.profile
          ? absl::StrFormat(", times of %s with a micro-batch of %d", device_of(*simulated.profile),
                            simulated.profile->profile.batch_rows)
          : absl::StrFormat(
                ", times from FLOPs and bytes, such that the plain network runs the "
                "published %g images/s on one device",
                kPublishedOneDevice);
  outcome.note = row.describe() + times +
                 (simulated.machine.bandwidth > 0
                      ? absl::StrFormat("; links of %g GB/s", simulated.machine.bandwidth / 1e9)
                      : "; links without a limit") +
                 "; the optimizer left out" + note_of(row, Origin::kSimulated);
  outcome.settings = settings_of(row);
  outcome.settings["scale"] = to_text(Scale::kFull);
  outcome.settings["costs"] = simulated.profile ? device_of(*simulated.profile) : "nominal";
  *context.out << "\n" << row.name << " (simulated): " << outcome.note << std::endl;
  const SimulatedStep step = simulate_ablation(
      {row.name, row.whole_ablation()}, profile_of(row, simulated), {row.setup, simulated.machine});
  const double seconds = static_cast<double>(step.timeline.end() - step.timeline.begin()) / 1e9;
  outcome.figures["throughput"] = static_cast<double>(row.batch_size) / seconds;
  outcome.figures["utilization"] = 100 * split_time(step.timeline, step.routes).utilization();
  outcome.origin = Origin::kSimulated;
}

ExperimentRun prepare() {
  CommonFlags flags = read_common_flags();
  // --steps is checked here first, because each variant would repeat the message.
  (void)steps_flag();
  flags.for_measured = first_given({"steps"});
  flags.for_simulated = given_simulation_flag();
  ExperimentRun prepared;
  prepared.name = "unet_timeline";
  prepared.table = published_timeline();
  prepared.json = flags.json;
  prepared.remarks = {
      "Published: torchgpipe v0.0.7 (its repository), U-Net (5, 64), on four GPUs."};
  const Simulated simulated = simulated_flags();
  std::vector<VariantName> names;
  for (const AblationVariant& variant : ablations()) names.push_back({variant.name, true});
  prepared.variants = make_variants(
      flags, "all", names, {Origin::kMeasured, Origin::kPlanned, Origin::kSimulated},
      [simulated](const CommonFlags& given, const std::string& name, Origin way) -> RunVariant {
        return [given, way, simulated, row = settle(given, name, way)](Outcome& outcome,
                                                                       const RunContext& context) {
          if (way == Origin::kMeasured) {
            measure(given, row, outcome, context);
          } else if (way == Origin::kPlanned) {
            plan(row, outcome, context);
          } else {
            simulate(simulated, row, outcome, context);
          }
        };
      });
  if (has_way(prepared.variants, Origin::kMeasured)) {
    prepared.remarks.push_back(
        "Measured: --scale=" + to_text(flags.scale) +
        "; whole training steps on random images. Utilization: the share of a step in which the "
        "workers are in actions; published: of the GPUs, by nvidia-smi. Memory: at most, over all "
        "devices; on CUDA devices reserved bytes, on the CPU bytes of tensors.");
  }
  if (has_way(prepared.variants, Origin::kPlanned)) {
    prepared.remarks.push_back(
        "Planned: at full size. Memory: what LibTorch's allocator for CUDA would have reserved at "
        "most, over all devices. It is 0.84 of the published in dep-x-x and 0.53 to 0.60 in the "
        "other rows. Likely reasons, not verified: with copies on streams of their own, a block "
        "that another stream used is free only when that is done with it (streams alone took "
        "torchgpipe from 19.1 to 30.0); in baseline, recomputes may run ahead of backwards in any "
        "partition, here they do in the last one; and all published rows have cuDNN's workspaces.");
  }
  if (has_way(prepared.variants, Origin::kSimulated)) {
    prepared.remarks.push_back(
        "Simulated: at full size, without the optimizer's step. " +
        (simulated.profile ? std::string()
                           : "Layers' times: FLOPs and bytes at the speeds of a Tesla P40 (" +
                                 to_text(simulated.device) + "), multiplied by one factor. ") +
        to_text(simulated.machine) + ".");
  }
  return prepared;
}

}  // namespace
}  // namespace gpipe::experiments

int main(int argc, char** argv) {
  return gpipe::experiments::run_program(argc, argv, gpipe::experiments::kUsage,
                                         gpipe::experiments::prepare);
}
