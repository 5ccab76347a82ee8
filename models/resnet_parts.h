// resnet_parts: the common parts of the bottleneck ResNets of today and of June 2019.
#ifndef MODELS_RESNET_PARTS_H_
#define MODELS_RESNET_PARTS_H_

#include <torch/nn/modules/container/sequential.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::models::internal {

// The output of a block has this many times its inner channels.
constexpr int64_t kExpansion = 4;

// Throws c10::ValueError for options that do not make a network, or one far larger than any that
// exists.
void check_resnet(const std::vector<int64_t>& layers, int64_t num_classes, int64_t base_planes);

// The prefix of the names of a block's layers; `group` counts from 0.
std::string block_prefix(size_t group, int64_t block);
// The stride of the block's 3x3 convolution: each group except the first halves height and width.
int64_t block_stride(size_t group, int64_t block);

// Append the max-pool behind the first convolution's batch norm and ReLU, and the layers behind the
// last block.
void push_max_pool(torch::nn::SequentialImpl& model);
void push_tail(torch::nn::SequentialImpl& model, int64_t channels, int64_t num_classes);

}  // namespace gpipe::models::internal

#endif  // MODELS_RESNET_PARTS_H_
