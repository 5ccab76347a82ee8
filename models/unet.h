// unet: a simplified U-Net of any size as a flat Sequential, with skips between its two sides.
#ifndef MODELS_UNET_H_
#define MODELS_UNET_H_

#include <torch/arg.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>

namespace gpipe::models {

// The options of a simplified U-Net (after Ronneberger et al., "U-Net: Convolutional Networks for
// Biomedical Image Segmentation", 2015), as torchgpipe measured it.
struct UNetOptions {
  // How many times the image is halved; at most 24. Default: 5.
  TORCH_ARG(int64_t, depth) = 5;
  // Convolutions in a row at each level on each side, and at the bottom; at most 1024. Default: 5.
  TORCH_ARG(int64_t, num_convs) = 5;
  // Channels of the first level; every level has twice those of the level above. At least 2, as the
  // last decoder has half as many, and at most 2^20. Default: 64.
  TORCH_ARG(int64_t, base_channels) = 64;
  TORCH_ARG(int64_t, in_channels) = 3;   // at most 2^20
  TORCH_ARG(int64_t, out_channels) = 1;  // at most 2^20
};

// The layers, flat: num_convs * 4 * (2 * depth + 1) + 4 * depth + 1 of them. A convolution is
// followed by Dropout2d(0.1), InstanceNorm2d and LeakyReLU. Each level passes its last activation
// to the decoder of the same level as a skip ("encoder_0_skip"), in a namespace of its own;
// decoder_0 is the deepest.
//
// Takes images of shape [batch, in_channels, height, width], gives logits of shape [batch,
// out_channels, height, width]. Height and width must be at least 2^(depth + 1); otherwise the
// instance norm at the bottom has a single element to normalize.
//
// Throws c10::ValueError for options that do not make a network.
//
// Example:
//   auto model = gpipe::models::unet(UNetOptions().depth(4).base_channels(16));
//   auto logits = model->forward(images);
torch::nn::Sequential unet(const UNetOptions& options = {});

}  // namespace gpipe::models

#endif  // MODELS_UNET_H_
