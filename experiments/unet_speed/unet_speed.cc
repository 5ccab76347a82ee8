// U-Net speed: whole training steps on one device and through pipelines of 1 to 8 partitions, and
// the table beside torchgpipe's. See README.md in this folder.

#include "experiments/frame/program.h"
#include "experiments/rows/prepare_speed.h"
#include "experiments/rows/scaled_unet.h"
#include "experiments/rows/speed_experiment.h"
#include "experiments/unet_speed/published.h"
#include "models/by_name.h"

namespace gpipe::experiments {
namespace {

constexpr char kUsage[] =
    "Trains U-Nets on one device and through pipelines of 1, 2, 4 and 8 partitions, on\n"
    "random images that are made once, and simulates U-Net (5, 64) on the published\n"
    "devices; prints the images per second and speed-ups beside those that torchgpipe\n"
    "published.\n\n"
    "  tools/bazel run //experiments/unet_speed\n"
    "  tools/bazel run //experiments/unet_speed -- --ways=simulated\n"
    "  tools/bazel run //experiments/unet_speed -- --scale=full \\\n"
    "    --experiment=baseline,pipeline-2 --devices=cuda:0,cuda:1\n\n"
    "Experiments: baseline, pipeline-1, pipeline-2, pipeline-4, pipeline-8.\n"
    "Ctrl-C stops after the current step with what was reached (exit code 130).";

Network network(Scale scale) {
  if (scale == Scale::kSmoke) return scaled_unet(3, 2, 8, 64);
  if (scale == Scale::kSmall) return scaled_unet(4, 2, 16, 96);
  return {"U-Net (5, 64)", models::model_by_name("unet:5,64")};
}

SpeedExperiment experiment() {
  SpeedExperiment experiment;
  experiment.name = "unet_speed";
  experiment.title = "U-Net (5, 64) speed: ours beside torchgpipe's";
  experiment.variants = speed_variants();
  experiment.samples = 10000;
  experiment.remarks = {"Published: torchgpipe v0.0.5, U-Net (5, 64), on GPUs."};
  experiment.network = network;
  experiment.smoke = {/*samples=*/512, /*epochs=*/2, /*micro_batch=*/8, /*most_chunks=*/16};
  experiment.small = {/*samples=*/1024, /*epochs=*/3, /*micro_batch=*/8, /*most_chunks=*/16};
  experiment.target = unet_target;
  return experiment;
}

ExperimentRun prepare() { return prepare_speed(experiment()); }

}  // namespace
}  // namespace gpipe::experiments

int main(int argc, char** argv) {
  return gpipe::experiments::run_program(argc, argv, gpipe::experiments::kUsage,
                                         gpipe::experiments::prepare);
}
