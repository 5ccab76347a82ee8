#include "experiments/rows/scaled_resnet.h"

#include <numeric>

#include "experiments/frame/balance.h"

namespace gpipe::experiments {
namespace {

constexpr int64_t kStemLayers = 4;
constexpr int64_t kBlockLayers = 11;
constexpr int64_t kTailLayers = 3;

}  // namespace

std::string ScaledResNet::name() const {
  if (blocks == std::vector<int64_t>{3, 4, 23, 3} && base_planes == 64) return "ResNet-101";
  return "ResNet " + to_text(blocks) + " of " + std::to_string(base_planes) + " planes";
}

int64_t ScaledResNet::layers() const {
  return kStemLayers + kBlockLayers * std::accumulate(blocks.begin(), blocks.end(), int64_t{0}) +
         kTailLayers;
}

ScaledResNet scaled_resnet(Scale scale) {
  if (scale == Scale::kSmoke) return {{1, 1, 1, 1}, 8, 64};
  if (scale == Scale::kSmall) return {{2, 2, 2, 2}, 16, 64};
  return {};
}

}  // namespace gpipe::experiments
