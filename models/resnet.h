// resnet: bottleneck ResNets as a flat Sequential, with their shortcuts as skips.
#ifndef MODELS_RESNET_H_
#define MODELS_RESNET_H_

#include <torch/arg.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace gpipe::models {

// The options of a bottleneck ResNet (He et al., "Deep Residual Learning for Image Recognition",
// 2015, section 4.1) with the stride on the 3x3 convolution. The defaults are the ImageNet form.
struct ResNetOptions {
  // The number of blocks in each group, e.g. {3, 4, 23, 3} for ResNet-101. Each group has twice the
  // channels of the previous one and, except for the first, half its height and width. At most 16
  // groups of at most 1024 blocks.
  ResNetOptions(std::vector<int64_t> layers);  // NOLINT: implicit, as LibTorch's options are

  TORCH_ARG(std::vector<int64_t>, layers);
  TORCH_ARG(int64_t, num_classes) = 1000;  // at most 2^24
  // ReLUs within the blocks are in-place. This saves memory, but does not work in a pipeline with
  // checkpoints. Default: false.
  TORCH_ARG(bool, inplace) = false;
  // Inner channels of the first group; its blocks output four times as many. At most 2^20. Default:
  // 64.
  TORCH_ARG(int64_t, base_planes) = 64;
  TORCH_ARG(int64_t, in_channels) = 3;  // at most 2^20
  // For small images (28x28): a 3x3 convolution of stride 1 and no max-pool, instead of a 7x7
  // convolution of stride 2 with a max-pool. Default: false.
  TORCH_ARG(bool, small_stem) = false;
};

// The layers, flat, so that any of them may be the first of a partition: four in the stem (three in
// the small one), eleven in each block, three in the tail. Within a block the input bypasses the
// convolutions as a skip, "layer1_0_identity" to "layer1_0_residual", in a namespace of its own.
// The down-sampling of the shortcut is inside the residual layer.
//
// Takes images of shape [batch, in_channels, height, width], gives scores of shape [batch,
// num_classes]. Convolutions are initialized with kaiming-normal (fan-out), batch norms with one
// and zero.
//
// Throws c10::ValueError for options that do not make a network.
//
// Example:
//   auto model = gpipe::models::resnet(ResNetOptions({3, 4, 23, 3}).num_classes(10));
//   auto scores = model->forward(images);
torch::nn::Sequential resnet(const ResNetOptions& options);

torch::nn::Sequential resnet50();
torch::nn::Sequential resnet101();
torch::nn::Sequential resnet152();

}  // namespace gpipe::models

#endif  // MODELS_RESNET_H_
