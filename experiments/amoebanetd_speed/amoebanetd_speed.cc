// AmoebaNet-D speed: whole training steps through pipelines of 2, 4 and 8 partitions with 1, 4 and
// 32 micro-batches, and the table beside those of torchgpipe and of Huang et al. See README.md in
// this folder.

#include <cstdint>
#include <string>

#include "absl/strings/str_format.h"
#include "experiments/amoebanetd_speed/published.h"
#include "experiments/frame/program.h"
#include "experiments/rows/prepare_speed.h"
#include "experiments/rows/speed_experiment.h"
#include "models/amoebanetd.h"
#include "models/by_name.h"

namespace gpipe::experiments {
namespace {

constexpr char kUsage[] =
    "Trains AmoebaNet-Ds through pipelines of 2, 4 and 8 partitions with 1, 4 and 32\n"
    "micro-batches, on random images that are made once, and simulates AmoebaNet-D\n"
    "(18, 256) on the published devices; prints the images per second and speed-ups\n"
    "over n2m1 beside those that torchgpipe and Huang et al. published.\n\n"
    "  tools/bazel run //experiments/amoebanetd_speed\n"
    "  tools/bazel run //experiments/amoebanetd_speed -- --ways=simulated\n"
    "  tools/bazel run //experiments/amoebanetd_speed -- --scale=full \\\n"
    "    --experiment=n2m1,n2m4 --devices=cuda:0,cuda:1\n\n"
    "Experiments: n2m1, n2m4, n2m32, n4m1, n4m4, n4m32, n8m1, n8m4, n8m32.\n"
    "Ctrl-C stops after the current step with what was reached (exit code 130).";

// The network of a smaller scale. Its images are 224 x 224 at every scale, because the network does
// not accept smaller ones.
Network smaller(int64_t num_layers, int64_t num_filters) {
  models::NamedModel model = models::model_by_name("amoebanetd:18,256");
  model.make = [=] {
    return models::amoebanetd(
        models::AmoebaNetDOptions().num_layers(num_layers).num_filters(num_filters));
  };
  return {absl::StrFormat("AmoebaNet-D (%d, %d)", num_layers, num_filters), model};
}

Network network(Scale scale) {
  if (scale == Scale::kSmoke) return smaller(3, 16);
  if (scale == Scale::kSmall) return smaller(6, 32);
  return {"AmoebaNet-D (18, 256)", models::model_by_name("amoebanetd:18,256")};
}

SpeedExperiment experiment() {
  SpeedExperiment experiment;
  experiment.name = "amoebanetd_speed";
  experiment.title =
      "AmoebaNet-D (18, 256) speed: ours beside torchgpipe's and that of Huang et al.";
  experiment.variants = speed_variants();
  experiment.samples = 10000;
  experiment.remarks = {
      "Published: torchgpipe v0.0.5 (on GPUs) and Huang et al. (GPipe), AmoebaNet-D (18, 256); "
      "speed-ups are over n2m1, two partitions with one micro-batch."};
  experiment.network = network;
  experiment.smoke = {/*samples=*/128, /*epochs=*/2, /*micro_batch=*/4, /*most_chunks=*/8};
  experiment.small = {/*samples=*/256, /*epochs=*/3, /*micro_batch=*/4, /*most_chunks=*/16};
  return experiment;
}

ExperimentRun prepare() { return prepare_speed(experiment()); }

}  // namespace
}  // namespace gpipe::experiments

int main(int argc, char** argv) {
  return gpipe::experiments::run_program(argc, argv, gpipe::experiments::kUsage,
                                         gpipe::experiments::prepare);
}
