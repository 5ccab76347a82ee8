// ablations, published_timeline: torchgpipe's ablation of U-Net (5, 64) on four devices, and its
// table.
#ifndef GPIPE_EXPERIMENTS_UNET_TIMELINE_PUBLISHED_H_
#define GPIPE_EXPERIMENTS_UNET_TIMELINE_PUBLISHED_H_

#include <cstdint>
#include <string>
#include <vector>

#include "experiments/frame/report.h"
#include "gpipe/ablation.h"

namespace gpipe::experiments {

// A row: which of torchgpipe's three optimizations it has. Early recomputes: without "Dependency".
// Direct skips: "Portals".
struct AblationVariant {
  std::string name;
  Ablation ablation;
};

const std::vector<AblationVariant>& ablations();

// The settings of all rows.
inline constexpr int64_t kPublishedBatch = 128;
inline constexpr int64_t kPublishedChunks = 8;
inline constexpr int64_t kPublishedSteps = 16;  // steps of an epoch
const std::vector<int64_t>& published_balance();

PublishedTable published_timeline();

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_UNET_TIMELINE_PUBLISHED_H_
