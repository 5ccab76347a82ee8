// ResNet-101 speed: whole training steps on one device and through pipelines of 1 to 8 partitions,
// and the table beside those of torchgpipe and of Huang et al. See README.md in this folder.

#include <cstdint>
#include <string>
#include <vector>

#include "experiments/frame/balance.h"
#include "experiments/frame/edition.h"
#include "experiments/frame/program.h"
#include "experiments/resnet101_speed/published.h"
#include "experiments/rows/prepare_speed.h"
#include "experiments/rows/scaled_resnet.h"
#include "experiments/rows/speed_experiment.h"
#include "models/by_name.h"
#include "models/old_resnet.h"
#include "models/resnet.h"

namespace gpipe::experiments {
namespace {

constexpr char kUsage[] =
    "Trains ResNets on one device and through pipelines of 1, 2, 4 and 8 partitions,\n"
    "on random images that are made once, and simulates ResNet-101 on the published\n"
    "devices; prints the images per second and speed-ups beside those that torchgpipe\n"
    "and Huang et al. published.\n\n"
    "  tools/bazel run //experiments/resnet101_speed\n"
    "  tools/bazel run //experiments/resnet101_speed -- --ways=simulated\n"
    "  tools/bazel run //experiments/resnet101_speed -- --scale=full \\\n"
    "    --experiment=baseline,pipeline-2 --devices=cuda:0,cuda:1\n\n"
    "Experiments: baseline (naive-1 with --edition=2019-06), pipeline-1, pipeline-2,\n"
    "pipeline-4, pipeline-8.\n"
    "Ctrl-C stops after the current step with what was reached (exit code 130).";

Network network(Scale scale) {
  const ScaledResNet scaled = scaled_resnet(scale);
  models::NamedModel model = models::model_by_name("resnet:101", scaled.image_size);
  if (scale != Scale::kFull) {
    model.make = [scaled] {
      return models::resnet(models::ResNetOptions(scaled.blocks).base_planes(scaled.base_planes));
    };
  }
  return {scaled.name(), model};
}

Network old_network(Scale scale) {
  const ScaledResNet scaled = scaled_resnet(scale);
  models::NamedModel model = models::model_by_name("old_resnet:101", scaled.image_size);
  if (scale == Scale::kFull) return {"ResNet-101 of June 2019", model};
  model.make = [scaled, classes = model.classes] {
    return models::old_resnet(models::OldResNetOptions(scaled.blocks)
                                  .num_classes(classes)
                                  .base_planes(scaled.base_planes));
  };
  return {"ResNet of June 2019, " + to_text(scaled.blocks) + " of " +
              std::to_string(scaled.base_planes) + " planes",
          model};
}

SpeedExperiment experiment(Edition edition) {
  SpeedExperiment experiment;
  experiment.name = "resnet101_speed";
  experiment.edition = to_text(edition);
  experiment.variants = speed_variants(edition);
  experiment.samples = 50000;
  experiment.smoke = {/*samples=*/1024, /*epochs=*/2, /*micro_batch=*/32, /*most_chunks=*/16};
  experiment.small = {/*samples=*/4096, /*epochs=*/3, /*micro_batch=*/32, /*most_chunks=*/16};
  if (edition == Edition::kCurrent) {
    experiment.remarks = {
        "Published: torchgpipe v0.0.5 and Huang et al. (GPipe), ResNet-101, on GPUs."};
    experiment.title = "ResNet-101 speed: ours beside torchgpipe's and that of Huang et al.";
    experiment.network = network;
    return experiment;
  }
  experiment.remarks = {
      "Published: torchgpipe's README of 2019-06-20, speed-ups only. Its history does not show the "
      "batch sizes, balances and devices of that run. Its own script of four days later, whose "
      "settings are assumed here, has other results. That script makes images while it runs; here "
      "they are made once."};
  experiment.assumed = "settings assumed: those of torchgpipe's script of 2019-06-24";
  experiment.network = old_network;
  experiment.title = "ResNet-101 speed, torchgpipe's table of June 2019: ours beside it";
  experiment.reference_source = "of torchgpipe's script of 2019-06-24";
  return experiment;
}

ExperimentRun prepare() { return prepare_speed(experiment(edition_flag())); }

}  // namespace
}  // namespace gpipe::experiments

int main(int argc, char** argv) {
  return gpipe::experiments::run_program(argc, argv, gpipe::experiments::kUsage,
                                         gpipe::experiments::prepare);
}
