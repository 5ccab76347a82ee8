// AmoebaNet-D memory: how large an AmoebaNet-D can be trained on 1 to 8 devices, and the table
// beside those of torchgpipe and of Huang et al. See README.md in this folder.

#include "experiments/amoebanetd_memory/published.h"
#include "experiments/frame/edition.h"
#include "experiments/frame/program.h"
#include "experiments/rows/memory_experiment.h"

namespace {

constexpr char kUsage[] =
    "Shows the memory of AmoebaNet-Ds that grow with the number of devices, beside what\n"
    "torchgpipe and Huang et al. published. The memory is planned at full size, without\n"
    "the devices, and measured over two training steps at --scale, with\n"
    "--schedule=gpipe as published.\n\n"
    "  tools/bazel run //experiments/amoebanetd_memory\n"
    "  tools/bazel run //experiments/amoebanetd_memory -- --edition=2019-06\n"
    "  tools/bazel run //experiments/amoebanetd_memory -- --ways=measured \\\n"
    "    --scale=full --experiment=pipeline-2 --devices=cuda:0,cuda:1\n\n"
    "Experiments: baseline (naive-1 with --edition=2019-06), pipeline-1, pipeline-2,\n"
    "pipeline-4, pipeline-8.";

}  // namespace

int main(int argc, char** argv) {
  namespace experiments = gpipe::experiments;
  return experiments::run_program(argc, argv, kUsage, [] {
    return experiments::prepare_memory(experiments::amoebanetd_memory(experiments::edition_flag()));
  });
}
