// old_resnet: the bottleneck ResNets that torchgpipe measured until the summer of 2019.
//
// They are kept because a published table ("ResNet-101 Performance Benchmark") was measured with
// them. For anything else take models/resnet.h.
#ifndef MODELS_OLD_RESNET_H_
#define MODELS_OLD_RESNET_H_

#include <torch/arg.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace gpipe::models {

// The options of torchgpipe's older ResNet (its examples/resnet from June 2019). It differs from
// ResNetOptions' networks: blocks have no ReLU after their first and second batch norm, weights are
// drawn from a wider distribution, and shortcuts are not skips, but go from layer to layer.
struct OldResNetOptions {
  // The number of blocks in each group, {3, 4, 23, 3} for ResNet-101. At most 16 groups of at most
  // 1024 blocks.
  OldResNetOptions(std::vector<int64_t> layers);  // NOLINT: implicit, as LibTorch's options are

  TORCH_ARG(std::vector<int64_t>, layers);
  TORCH_ARG(int64_t, num_classes) = 1000;  // at most 2^24
  // Inner channels of the first group; its blocks output four times as many. At most 2^20. Default:
  // 64.
  TORCH_ARG(int64_t, base_planes) = 64;
};

// The layers, flat: four in the stem, nine in each block, three in the tail. From a block's first
// layer, "layer1_0_twin", to "layer1_0_residual" two tensors go from layer to layer as a
// std::vector<torch::Tensor>: the output of the convolutions so far, and the block's input. The
// down-sampling of the shortcut is inside the residual layer.
//
// Takes images of shape [batch, 3, height, width], gives scores of shape [batch, num_classes].
//
// Throws c10::ValueError for options that do not make a network.
//
// Example:
//   auto model = gpipe::models::old_resnet(OldResNetOptions({3, 4, 23, 3}).num_classes(10));
//   auto scores = model->forward(images);
torch::nn::Sequential old_resnet(const OldResNetOptions& options);

}  // namespace gpipe::models

#endif  // MODELS_OLD_RESNET_H_
