#include "experiments/unet_speed/published.h"

#include "experiments/rows/speed_table.h"

namespace gpipe::experiments {

// The runs of torchgpipe's benchmarks/unet-speed, v0.0.7.
const std::vector<SpeedVariant>& speed_variants() {
  static const std::vector<SpeedVariant> variants = {
      {"baseline", 40, 1, {}},
      {"pipeline-1", 80, 2, {241}},
      {"pipeline-2", 512, 32, {104, 137}},
      {"pipeline-4", 512, 16, {30, 66, 84, 61}},
      {"pipeline-8", 640, 40, {16, 27, 31, 44, 22, 57, 27, 17}},
  };
  return variants;
}

// The figures of torchgpipe's documentation, "U-Net (5, 64) Speed Benchmark", v0.0.5.
PublishedTable published_speed() {
  return speed_table("U-Net (5, 64) speed: ours beside torchgpipe's",
                     {
                         {"baseline", "28.500", "1"},
                         {"pipeline-1", "24.456", "0.858"},
                         {"pipeline-2", "35.502", "1.246"},
                         {"pipeline-4", "67.042", "2.352"},
                         {"pipeline-8", "88.497", "3.105"},
                     });
}

}  // namespace gpipe::experiments
