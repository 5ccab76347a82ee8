#include "experiments/amoebanetd_speed/published.h"

namespace gpipe::experiments {

// The runs of torchgpipe's benchmarks/amoebanetd-speed, v0.0.7. Runs with one micro-batch are
// checkpointed, too. The figures are from torchgpipe's documentation, "AmoebaNet-D (18, 256) Speed
// Benchmark", v0.0.5. (The README of torchgpipe's benchmark has other speed-ups, 1.546 for n2m4 and
// so on, which are not its own throughputs divided by that of n2m1.)
const std::vector<SpeedVariant>& speed_variants() {
  static const std::vector<SpeedVariant> variants = {
      {"n2m1", 96, 1, {7, 17}, {"26.733", "1", "1"}, Checkpoint::kAlways},
      {"n2m4", 256, 4, {9, 15}, {"41.133", "1.539", "1.07"}},
      {"n2m32", 1280, 32, {9, 15}, {"47.386", "1.773", "1.21"}},
      {"n4m1", 160, 1, {3, 4, 5, 12}, {"26.827", "1.004", "1.13"}, Checkpoint::kAlways},
      {"n4m4", 360, 4, {3, 6, 7, 8}, {"44.543", "1.666", "1.26"}},
      {"n4m32", 1152, 32, {3, 6, 7, 8}, {"72.412", "2.709", "1.84"}},
      {"n8m1", 196, 1, {2, 2, 2, 2, 2, 3, 4, 7}, {"24.918", "0.932", "1.38"}, Checkpoint::kAlways},
      {"n8m4", 480, 4, {2, 2, 2, 3, 3, 4, 4, 4}, {"70.065", "2.621", "1.72"}},
      {"n8m32", 1280, 32, {2, 2, 2, 3, 3, 4, 4, 4}, {"132.413", "4.953", "3.48"}},
  };
  return variants;
}

}  // namespace gpipe::experiments
