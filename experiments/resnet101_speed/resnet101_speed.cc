// ResNet-101 speed: whole training steps on one device and through pipelines of 1 to 8 partitions,
// and the table beside those of torchgpipe and of Huang et al. See README.md in this folder.

#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "balance/training_flags.h"
#include "command/flag_values.h"
#include "experiments/common/balance.h"
#include "experiments/common/devices.h"
#include "experiments/common/flags.h"
#include "experiments/common/program.h"
#include "experiments/common/scaled_resnet.h"
#include "experiments/common/speed_run.h"
#include "experiments/common/trainer.h"
#include "experiments/common/variants.h"
#include "experiments/resnet101_speed/published.h"
#include "models/resnet.h"

ABSL_FLAG(int64_t, samples, 0,
          "Images of an epoch. Default: the scale's (smoke 1024, small 4096, full 50000).");

namespace gpipe::experiments {
namespace {

constexpr char kUsage[] =
    "Trains ResNets on one device and through pipelines of 1, 2, 4 and 8 partitions,\n"
    "on random images that are made once, and prints the images per second beside\n"
    "those that torchgpipe and Huang et al. published.\n\n"
    "  tools/bazel run -c opt //experiments/resnet101_speed\n"
    "  tools/bazel run -c opt //experiments/resnet101_speed -- --scale=full \\\n"
    "    --experiment=baseline,pipeline-2 --devices=cuda:0,cuda:1\n\n"
    "Experiments: baseline, pipeline-1, pipeline-2, pipeline-4, pipeline-8.\n"
    "Ctrl-C stops after the current step with what was reached (exit code 130).";

constexpr int64_t kClasses = 1000;
constexpr double kLearningRate = 0.1;

// What is run.
struct Settings {
  std::string name;
  ScaledResNet network;
  int64_t batch_size = 0;
  int64_t chunks = 1;
  std::vector<int64_t> balance;  // empty: the plain network
  int64_t samples = 0;
  int64_t epochs = 10;
  std::vector<c10::Device> devices;
};

// At the smaller scales: images per micro-batch, and the maximum number of micro-batches per
// mini-batch.
constexpr int64_t kSmallMicroBatch = 32;
constexpr int64_t kSmallChunks = 16;

Settings settle(const CommonFlags& flags, const std::string& name) {
  const SpeedVariant& published = find_variant(speed_variants(), name);
  Settings settings;
  settings.name = published.name;
  settings.network = scaled_resnet(flags.scale);
  settings.batch_size = published.batch_size;
  settings.chunks = published.chunks;
  settings.samples = 50000;
  if (flags.scale != Scale::kFull) {
    settings.chunks = std::min(published.chunks, kSmallChunks);
    settings.batch_size = settings.chunks * kSmallMicroBatch;
    settings.samples = flags.scale == Scale::kSmoke ? 1024 : 4096;
    settings.epochs = flags.scale == Scale::kSmoke ? 3 : 5;
  }
  if (flags.batch_size > 0) settings.batch_size = flags.batch_size;
  if (flags.epochs > 0) settings.epochs = flags.epochs;
  const int64_t samples =
      command::in_range("samples", absl::GetFlag(FLAGS_samples), 0, int64_t{1} << 40);
  if (samples > 0) settings.samples = samples;
  if (!published.balance.empty()) {
    settings.chunks = choose_chunks(flags, settings.chunks, settings.batch_size);
    settings.balance = choose_balance(flags.balance, published.balance, settings.network.name(),
                                      settings.network.layers());
  }
  settings.devices = choose_devices(
      flags, published.name, std::max<int64_t>(static_cast<int64_t>(settings.balance.size()), 1));
  return settings;
}

std::string describe(const CommonFlags& flags, const Settings& settings) {
  std::string text =
      absl::StrFormat("%s, %d x 3 x %d x %d", settings.network.name(), settings.batch_size,
                      settings.network.image_size, settings.network.image_size);
  if (!settings.balance.empty()) {
    text += describe_pipeline(flags, settings.chunks, settings.balance);
  }
  return text + absl::StrFormat(", %d epochs of %d images, ", settings.epochs, settings.samples) +
         count_devices(settings.devices);
}

Json settings_of(const CommonFlags& flags, const Settings& settings) {
  Json json = {{"network", settings.network.name()},
               {"batch_size", settings.batch_size},
               {"image_size", settings.network.image_size},
               {"samples", settings.samples},
               {"epochs", settings.epochs}};
  add_common(flags, settings.devices, json);
  if (!settings.balance.empty()) add_pipeline(flags, settings.chunks, settings.balance, json);
  return json;
}

std::unique_ptr<Trainer> make_trainer(const CommonFlags& flags, const Settings& settings) {
  const bool pipeline = !settings.balance.empty();
  Task task;
  task.make_model = [&] {
    at::manual_seed(flags.seed);
    return models::resnet(models::ResNetOptions(settings.network.blocks)
                              .num_classes(kClasses)
                              .base_planes(settings.network.base_planes)
                              .inplace(!pipeline));
  };
  task.loss = [](const at::Tensor& scores, const at::Tensor& labels) {
    return at::cross_entropy_loss(scores, labels);
  };
  if (!pipeline) return make_naive_trainer(task, settings.devices.front());
  return make_pipeline_trainer(task,
                               GPipeOptions(settings.balance)
                                   .devices(settings.devices)
                                   .chunks(settings.chunks)
                                   .checkpoint(flags.checkpoint),
                               balance::parse_schedule(flags.schedule));
}

void run(const CommonFlags& flags, const Settings& settings, Outcome& outcome,
         const RunContext& context) {
  outcome.note = describe(flags, settings);
  outcome.settings = settings_of(flags, settings);
  *context.out << "\n" << settings.name << ": " << outcome.note << std::endl;
  const std::unique_ptr<Trainer> trainer = make_trainer(flags, settings);
  const int64_t rows = std::min(settings.batch_size, settings.samples);
  const int64_t side = settings.network.image_size;
  const at::Tensor images = at::rand({rows, 3, side, side}, trainer->input_device());
  const at::Tensor labels =
      at::randint(kClasses, {rows}, at::TensorOptions(at::kLong).device(trainer->target_device()));
  torch::optim::SGD optimizer(trainer->module().parameters(),
                              torch::optim::SGDOptions(kLearningRate));
  SpeedOptions options;
  options.title = settings.name;
  options.samples = settings.samples;
  options.epochs = settings.epochs;
  options.skip_epochs = flags.skip_epochs;
  run_speed(*trainer, optimizer, images, labels, options, context, outcome);
}

Plan prepare() {
  const CommonFlags flags = read_common_flags();
  Plan plan;
  plan.name = "resnet101_speed";
  plan.table = published_speed();
  plan.json = flags.json;
  plan.remarks = {"Published: torchgpipe v0.0.5 and Huang et al. (GPipe), ResNet-101, on GPUs.",
                  "Measured: --scale=" + to_text(flags.scale) +
                      "; whole training steps on random images, loading left out."};
  plan.variants = make_variants(
      flags, "all", names_of(speed_variants()), {Origin::kMeasured},
      [](const CommonFlags& own, const std::string& name, Origin /*way*/) -> RunVariant {
        return [own, settings = settle(own, name)](Outcome& outcome, const RunContext& context) {
          run(own, settings, outcome, context);
        };
      });
  return plan;
}

}  // namespace
}  // namespace gpipe::experiments

int main(int argc, char** argv) {
  return gpipe::experiments::run_program(argc, argv, gpipe::experiments::kUsage,
                                         gpipe::experiments::prepare);
}
