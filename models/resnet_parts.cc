#include "models/resnet_parts.h"

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>
#include <torch/nn/pimpl.h>

#include <ostream>

#include "models/check_size.h"

namespace gpipe::models::internal {
namespace {

class FlatImpl : public torch::nn::Cloneable<FlatImpl> {
 public:
  void reset() override {}
  void pretty_print(std::ostream& stream) const override { stream << "Flat"; }
  at::Tensor forward(const at::Tensor& input) { return input.flatten(1); }
};
TORCH_MODULE(Flat);

}  // namespace

// The upper limits turn a typing error into a message instead of exhausted memory.
void check_resnet(const std::vector<int64_t>& layers, int64_t num_classes, int64_t base_planes) {
  TORCH_CHECK_VALUE(!layers.empty(), "a ResNet needs at least one group of blocks, got no layers");
  TORCH_CHECK_VALUE(layers.size() <= 16, "a ResNet may have at most 16 groups, got ",
                    layers.size());
  for (int64_t blocks : layers) {
    TORCH_CHECK_VALUE(blocks > 0, "every group of a ResNet needs at least one block, got layers ",
                      c10::IntArrayRef(layers));
    TORCH_CHECK_VALUE(blocks <= 1024,
                      "a group of a ResNet may have at most 1024 blocks, got layers ",
                      c10::IntArrayRef(layers));
  }
  check_size("num_classes", num_classes, 1, int64_t{1} << 24);
  check_size("base_planes", base_planes, 1, int64_t{1} << 20);
}

std::string block_prefix(size_t group, int64_t block) {
  return "layer" + std::to_string(group + 1) + "_" + std::to_string(block) + "_";
}

int64_t block_stride(size_t group, int64_t block) { return group > 0 && block == 0 ? 2 : 1; }

void push_max_pool(torch::nn::SequentialImpl& model) {
  using torch::nn::MaxPool2d;
  model.push_back("maxpool", MaxPool2d(torch::nn::MaxPool2dOptions(3).stride(2).padding(1)));
}

void push_tail(torch::nn::SequentialImpl& model, int64_t channels, int64_t num_classes) {
  model.push_back("avgpool", torch::nn::AdaptiveAvgPool2d(1));
  model.push_back("flat", Flat());
  model.push_back("fc", torch::nn::Linear(channels, num_classes));
}

}  // namespace gpipe::models::internal
