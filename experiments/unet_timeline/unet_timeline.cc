// U-Net timeline: torchgpipe's ablation. A U-Net on four devices without each of the optimizations
// that a pipeline has, and the table beside torchgpipe's. See README.md in this folder.

#include <ATen/Context.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "balance/costs/profiler.h"
#include "balance/memory/memory_plan.h"
#include "command/flag_values.h"
#include "experiments/frame/balance.h"
#include "experiments/frame/devices.h"
#include "experiments/frame/flags.h"
#include "experiments/frame/memory_limit.h"
#include "experiments/frame/program.h"
#include "experiments/frame/trainer.h"
#include "experiments/frame/variants.h"
#include "experiments/rows/explain_run.h"
#include "experiments/rows/layer_costs.h"
#include "experiments/rows/simulated_speed.h"
#include "experiments/rows/simulation_flags.h"
#include "experiments/rows/speed_run.h"
#include "experiments/rows/speed_variant.h"
#include "experiments/unet_timeline/published.h"
#include "experiments/unet_timeline/simulated.h"
#include "gpipe/timeline/time_split.h"
#include "interception/peak_memory.h"
#include "meta/meta_scope.h"
#include "models/by_name.h"
#include "models/unet.h"
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

constexpr double kLearningRate = 0.1;
// Images per second of the plain network on one of the same GPUs (torchgpipe, U-Net speed).
constexpr double kPublishedOneDevice = 28.5;

// The network at a scale.
struct Network {
  int64_t depth = 5;
  int64_t convolutions = 5;
  int64_t channels = 64;
  int64_t image_size = 192;

  std::string name() const {
    return absl::StrFormat("U-Net (%d, %d)", convolutions, channels) +
           (depth == 5 ? "" : absl::StrFormat(" of depth %d", depth));
  }
  int64_t layers() const { return convolutions * 4 * (2 * depth + 1) + 4 * depth + 1; }
  torch::nn::Sequential make() const {
    return models::unet(
        models::UNetOptions().depth(depth).num_convs(convolutions).base_channels(channels));
  }
};

struct Settings {
  AblationVariant variant;
  Network network;
  int64_t batch_size = kPublishedBatch;
  PipelineSetup setup;
  int64_t steps = kPublishedSteps;
  int64_t epochs = 10;
  std::vector<c10::Device> devices;  // the devices of a measured run
};

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
        load_profile_of(flags.profile, models::model_by_name("unet:5,64"), Network().name());
  }
  return simulated;
}

// A note on what of torchgpipe's row our row does not reproduce.
std::string note_of(const AblationVariant& variant, Origin way) {
  std::string note;
  if (variant.early_recomputes) {
    note +=
        "; in place of torchgpipe without its dependencies, whose autograd engine recomputes ahead "
        "of backwards: the last partition recomputes all micro-batches before its first backward "
        "(in other partitions the engine's order depends on the host's timing, and is not "
        "reproduced)";
  }
  if (!variant.copy_streams && way == Origin::kPlanned) {
    note += "; the streams of copies make no difference to a plan";
  }
  return note;
}

std::string describe(const Settings& settings) {
  return absl::StrFormat("%s, %d x 3 x %d x %d", settings.network.name(), settings.batch_size,
                         settings.network.image_size, settings.network.image_size) +
         ", " + to_text(settings.setup);
}

// The flags of a row at full size: it runs as published, whatever the flags of measured rows are.
CommonFlags published(const CommonFlags& given) {
  CommonFlags flags = given;
  flags.batch_size = flags.chunks = flags.epochs = std::nullopt;
  flags.balance.clear();
  flags.checkpoint = std::nullopt;
  flags.schedule = std::nullopt;
  return flags;
}

Settings settle(const CommonFlags& flags, const std::string& name, Origin way) {
  Settings settings;
  settings.variant = find_variant(ablations(), name);
  const bool measured = way == Origin::kMeasured;
  if (measured && flags.scale != Scale::kFull) {
    settings.network = flags.scale == Scale::kSmoke ? Network{3, 2, 8, 64} : Network{5, 2, 16, 96};
    settings.batch_size = 32;
    settings.steps = 4;
    settings.epochs = flags.scale == Scale::kSmoke ? 3 : 5;
  }
  settings.batch_size = flags.batch_size.value_or(settings.batch_size);
  settings.epochs = flags.epochs.value_or(settings.epochs);
  settings.steps = command::in_range("steps", absl::GetFlag(FLAGS_steps), 1, kMostSteps)
                       .value_or(settings.steps);
  const int64_t chunks = choose_chunks(flags, kPublishedChunks, settings.batch_size);
  settings.setup = choose_setup(flags,
                                choose_balance(flags.balance, published_balance(),
                                               settings.network.name(), settings.network.layers()),
                                chunks, Checkpoint::kExceptLast, {"gpipe", Schedule::gpipe});
  if (measured) {
    settings.devices =
        choose_devices(flags, name, static_cast<int64_t>(settings.setup.balance.size()));
  }
  return settings;
}

Json settings_of(const Settings& settings) {
  Json json = {{"network", settings.network.name()},
               {"batch_size", settings.batch_size},
               {"image_size", settings.network.image_size},
               {"direct_skips", settings.variant.direct_skips},
               {"copy_streams", settings.variant.copy_streams},
               {"early_recomputes", settings.variant.early_recomputes}};
  add_pipeline(settings.setup, json);
  return json;
}

at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& targets) {
  return at::binary_cross_entropy_with_logits(logits, targets);
}

void measure(const CommonFlags& flags, const Settings& settings, Outcome& outcome,
             const RunContext& context) {
  const bool on_cpu = std::all_of(settings.devices.begin(), settings.devices.end(),
                                  [](c10::Device device) { return device.is_cpu(); });
  outcome.note = describe(settings) +
                 absl::StrFormat(", %d epochs of %d steps, ", settings.epochs, settings.steps) +
                 count_devices(settings.devices) + note_of(settings.variant, Origin::kMeasured);
  if (!on_cpu) {
    outcome.note += "; no utilization: the workers' times are not those of the devices";
  } else if (!settings.variant.copy_streams) {
    outcome.note += "; between CPU stages nothing is copied, so the streams make no difference";
  }
  outcome.settings = settings_of(settings);
  outcome.settings["samples"] = settings.batch_size * settings.steps;
  outcome.settings["epochs"] = settings.epochs;
  outcome.settings["skip_epochs"] = flags.skip_epochs;
  add_common(flags, settings.devices, outcome.settings);
  *context.out << "\n" << settings.variant.name << ": " << outcome.note << std::endl;

  const Task task = {[&] {
                       at::manual_seed(flags.seed);
                       return settings.network.make();
                     },
                     loss_of};
  const MemoryLimit limit(limit_of_run(settings.devices));
  std::optional<internal::PeakMemory> memory(settings.devices);
  const std::unique_ptr<Trainer> trainer = make_pipeline_trainer(
      task,
      pipeline_options(settings.setup, settings.devices).ablation(settings.variant.ablation()),
      settings.setup.schedule.make);
  const int64_t side = settings.network.image_size;
  const at::Tensor images = at::rand({settings.batch_size, 3, side, side}, trainer->input_device());
  const at::Tensor targets =
      at::ones({settings.batch_size, 1, side, side}, trainer->target_device());
  torch::optim::SGD optimizer(trainer->module().parameters(),
                              torch::optim::SGDOptions(kLearningRate));
  SpeedOptions options;
  options.title = settings.variant.name;
  options.samples = settings.batch_size * settings.steps;
  options.epochs = settings.epochs;
  options.skip_epochs = flags.skip_epochs;
  options.utilization = on_cpu;
  options.trace = flags.trace;
  memory->reset(/*gives_back=*/true);
  run_speed(*trainer, optimizer, images, targets, options, context, outcome);
  if (outcome.origin == Origin::kMeasured) {
    const std::vector<int64_t> held = memory->held();
    outcome.figures["memory"] = text::in_gib(std::accumulate(held.begin(), held.end(), int64_t{0}));
  }
  memory.reset();  // explain_run() counts memory itself
  if (flags.explain && outcome.origin == Origin::kMeasured) {
    outcome.settings["diagnosis"] =
        explain_run(*trainer, images, targets, loss_of, settings.setup.schedule.make,
                    balance::ParamScale::kSgd, settings.variant.name, context);
  }
}

void plan(const Settings& settings, Outcome& outcome, const RunContext& context) {
  outcome.note = describe(settings) + note_of(settings.variant, Origin::kPlanned);
  outcome.settings = settings_of(settings);
  outcome.settings["scale"] = to_text(Scale::kFull);
  *context.out << "\n" << settings.variant.name << " (planned): " << outcome.note << std::endl;
  torch::nn::Sequential model = [&] {
    const MetaScope meta;
    return settings.network.make();
  }();
  const int64_t side = settings.network.image_size;
  const at::Tensor images = at::empty({settings.batch_size, 3, side, side}, at::kMeta);
  const at::Tensor targets = at::empty({settings.batch_size, 1, side, side}, at::kMeta);
  const LossFn loss = [](const Tensors& outputs, const Tensors& loss_targets) {
    return loss_of(outputs.at(0), loss_targets.at(0));
  };
  std::optional<command::Progress> bar;
  const balance::MemoryPlan memory_plan = balance::memory_plan(
      model, {images}, {targets}, loss,
      balance::MemoryPlanOptions(settings.setup.balance)
          .chunks(settings.setup.chunks)
          .partition_checkpoints(settings.setup.checkpoints)
          .schedule(settings.setup.schedule.make)
          .optimizer([](std::vector<at::Tensor> parameters) {
            return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                                       torch::optim::SGDOptions(kLearningRate));
          })
          .ablation(settings.variant.ablation())
          .progress([&](int64_t done, int64_t total) {
            context.check();
            if (!bar && context.progress != nullptr) {
              bar.emplace(*context.progress, settings.variant.name + ", planned", total,
                          context.progress_options);
            }
            if (bar) bar->update(done);
          }));
  outcome.figures["memory"] = text::in_gib(memory_plan.total_reserved());
  Json& devices = outcome.settings["gib_of_devices"] = Json::array();
  for (const balance::DeviceMemory& device : memory_plan.devices) {
    devices.push_back(text::in_gib(device.reserved));
  }
  outcome.origin = Origin::kPlanned;
}

int64_t rows_of(const Settings& settings) {
  return (settings.batch_size + settings.setup.chunks - 1) / settings.setup.chunks;
}

// The profile of the published network on the published device, scaled so that the plain network is
// as fast as published.
balance::Profile published_device(const Settings& settings, const Simulated& simulated) {
  const int64_t side = settings.network.image_size;
  const LayerCosts costs =
      nominal_costs([&] { return settings.network.make(); }, {3, side, side}, simulated.device);
  SpeedVariant plain;
  plain.name = "baseline";
  plain.batch_size = 40;
  const double factor =
      factor_for(plain, /*samples=*/10000, kPublishedOneDevice, costs, simulated.machine);
  return scaled(costs, factor)(rows_of(settings));
}

void simulate(const Simulated& simulated, const Settings& settings, Outcome& outcome,
              const RunContext& context) {
  AblationSettings ablation;
  ablation.setup = settings.setup;
  ablation.machine = simulated.machine;
  const std::string times =
      simulated.profile
          ? absl::StrFormat(", times of %s with a micro-batch of %d", device_of(*simulated.profile),
                            simulated.profile->profile.batch_rows)
          : absl::StrFormat(
                ", times from FLOPs and bytes, such that the plain network runs the "
                "published %g images/s on one device",
                kPublishedOneDevice);
  outcome.note = describe(settings) + times +
                 (ablation.machine.bandwidth > 0
                      ? absl::StrFormat("; links of %g GB/s", ablation.machine.bandwidth / 1e9)
                      : "; links without a limit") +
                 "; the optimizer left out" + note_of(settings.variant, Origin::kSimulated);
  outcome.settings = settings_of(settings);
  outcome.settings["scale"] = to_text(Scale::kFull);
  outcome.settings["costs"] = simulated.profile ? device_of(*simulated.profile) : "nominal";
  *context.out << "\n" << settings.variant.name << " (simulated): " << outcome.note << std::endl;
  const SimulatedStep step = simulate_ablation(
      settings.variant,
      simulated.profile ? measured_costs(simulated.profile->profile)(rows_of(settings))
                        : published_device(settings, simulated),
      ablation);
  const double seconds = static_cast<double>(step.timeline.end() - step.timeline.begin()) / 1e9;
  outcome.figures["throughput"] = static_cast<double>(settings.batch_size) / seconds;
  outcome.figures["utilization"] = 100 * split_time(step.timeline, step.routes).utilization();
  outcome.origin = Origin::kSimulated;
}

ExperimentRun prepare() {
  CommonFlags flags = read_common_flags();
  // --steps is checked here first, because each variant would repeat the message.
  (void)command::in_range("steps", absl::GetFlag(FLAGS_steps), 1, kMostSteps);
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
        const CommonFlags own = way == Origin::kMeasured ? given : published(given);
        return [own, way, simulated, settings = settle(own, name, way)](Outcome& outcome,
                                                                        const RunContext& context) {
          if (way == Origin::kMeasured) {
            measure(own, settings, outcome, context);
          } else if (way == Origin::kPlanned) {
            plan(settings, outcome, context);
          } else {
            simulate(simulated, settings, outcome, context);
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
