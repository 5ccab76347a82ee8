// ScaledResNet: the ResNets of the experiments: ResNet-101 as published, and smaller ones of its
// kind.
#ifndef GPIPE_EXPERIMENTS_ROWS_SCALED_RESNET_H_
#define GPIPE_EXPERIMENTS_ROWS_SCALED_RESNET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "experiments/frame/scale.h"

namespace gpipe::experiments {

struct ScaledResNet {
  std::vector<int64_t> blocks = {3, 4, 23, 3};  // the blocks of each group
  int64_t base_planes = 64;
  int64_t image_size = 224;

  // A name like "ResNet-101", or "ResNet [1, 1, 1, 1] of 8 planes".
  std::string name() const;
  int64_t layers() const;  // the layers of models::resnet()'s flat network
};

ScaledResNet scaled_resnet(Scale scale);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_ROWS_SCALED_RESNET_H_
