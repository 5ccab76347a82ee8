// resnet_parts: what the bottleneck ResNets of today and of June 2019 share.
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

// Throws c10::ValueError for options that make no network, or one far beyond any.
void check_resnet(const std::vector<int64_t>& layers, int64_t num_classes, int64_t base_planes);

// What the names of a block's layers begin with; `group` counts from 0.
std::string block_prefix(size_t group, int64_t block);
// That of its 3x3 convolution: each group but the first halves height and width.
int64_t block_stride(size_t group, int64_t block);

// The layers behind the first convolution's batch norm and ReLU, and behind the last block.
void push_max_pool(torch::nn::SequentialImpl& model);
void push_tail(torch::nn::SequentialImpl& model, int64_t channels, int64_t num_classes);

}  // namespace gpipe::models::internal

#endif  // MODELS_RESNET_PARTS_H_
