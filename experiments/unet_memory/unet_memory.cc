// U-Net memory: how large a U-Net can be trained on 1 to 8 devices, and the table beside
// torchgpipe's. See README.md in this folder.

#include "experiments/frame/program.h"
#include "experiments/rows/memory_experiment.h"
#include "experiments/unet_memory/published.h"

namespace {

constexpr char kUsage[] =
    "Shows the memory of U-Nets that grow with the number of devices, beside what\n"
    "torchgpipe published. The memory is planned at full size, without the devices, and\n"
    "measured over two training steps at --scale, with --schedule=gpipe as published.\n\n"
    "  tools/bazel run //experiments/unet_memory\n"
    "  tools/bazel run //experiments/unet_memory -- --ways=measured \\\n"
    "    --scale=full --experiment=pipeline-2 --devices=cuda:0,cuda:1\n\n"
    "Experiments: baseline, pipeline-1, pipeline-2, pipeline-4, pipeline-8.";

}  // namespace

int main(int argc, char** argv) {
  return gpipe::experiments::run_program(argc, argv, kUsage, [] {
    return gpipe::experiments::prepare_memory(gpipe::experiments::unet_memory());
  });
}
