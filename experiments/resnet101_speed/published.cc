#include "experiments/resnet101_speed/published.h"

namespace gpipe::experiments {
namespace {

// The runs of torchgpipe's benchmarks/resnet101-speed, v0.0.7, with the figures of torchgpipe's
// documentation, "ResNet-101 Speed Benchmark", v0.0.5. Its column "Huang et al." is estimated from
// a diagram in the paper of Huang et al.
const std::vector<SpeedVariant>& current_variants() {
  static const std::vector<SpeedVariant> variants = {
      {"baseline", 118, 1, {}, {"95.862", "1", "1"}},
      {"pipeline-1", 220, 2, {370}, {"81.796", "0.853", "0.80"}},
      {"pipeline-2", 25000, 1667, {135, 235}, {"135.539", "1.414", "1.42"}},
      {"pipeline-4", 5632, 256, {44, 92, 124, 110}, {"265.958", "2.774", "2.18"}},
      {"pipeline-8", 5400, 150, {26, 22, 33, 44, 44, 66, 66, 69}, {"411.662", "4.294", "2.89"}},
  };
  return variants;
}

// The runs of torchgpipe's examples/resnet101_performance_benchmark at fa3bff0, 2019-06-24, with
// the figures of torchgpipe's README of 2019-06-20, "ResNet-101 Performance Benchmark". Its column
// "GPipe (original)" is read off figure 3(b) of Huang et al. The script's figures are those of
// examples/resnet101_performance_benchmark/README.md at fa3bff0, 2019-06-24.
const std::vector<SpeedVariant>& june_variants() {
  static const std::vector<SpeedVariant> variants = {
      {"naive-1", 128, 1, {}, {"", "1", "1", "100.506", "1.000"}},
      {"pipeline-1", 128, 1, {304}, {"", "0.74", "0.8", "73.925", "0.736"}, Checkpoint::kAlways},
      {"pipeline-2", 256, 16, {115, 189}, {"", "1.352", "1.418", "135.691", "1.350"}},
      {"pipeline-4", 1024, 64, {39, 78, 97, 90}, {"", "2.181", "2.182", "230.216", "2.291"}},
      {"pipeline-8",
       1792,
       64,
       {22, 18, 27, 36, 36, 54, 54, 57},
       {"", "2.808", "2.891", "312.945", "3.114"}},
  };
  return variants;
}

}  // namespace

const std::vector<SpeedVariant>& speed_variants(Edition edition) {
  return edition == Edition::kCurrent ? current_variants() : june_variants();
}

}  // namespace gpipe::experiments
