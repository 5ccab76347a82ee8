#include "experiments/unet_speed/published.h"

namespace gpipe::experiments {

// The runs of torchgpipe's benchmarks/unet-speed, v0.0.7, with the figures of torchgpipe's
// documentation, "U-Net (5, 64) Speed Benchmark", v0.0.5.
const std::vector<SpeedVariant>& speed_variants() {
  static const std::vector<SpeedVariant> variants = {
      {"baseline", 40, 1, {}, {"28.500", "1"}},
      {"pipeline-1", 80, 2, {241}, {"24.456", "0.858"}},
      {"pipeline-2", 512, 32, {104, 137}, {"35.502", "1.246"}},
      {"pipeline-4", 512, 16, {30, 66, 84, 61}, {"67.042", "2.352"}},
      {"pipeline-8", 640, 40, {16, 27, 31, 44, 22, 57, 27, 17}, {"88.497", "3.105"}},
  };
  return variants;
}

}  // namespace gpipe::experiments
