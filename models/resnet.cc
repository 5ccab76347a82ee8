#include "models/resnet.h"

#include <torch/nn/cloneable.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>

#include <ostream>
#include <string>

#include "models/check_size.h"
#include "models/resnet_parts.h"
#include "skip/skippable.h"

namespace gpipe::models {
namespace {

using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;

// Stashes its input unchanged.
class IdentityImpl : public torch::nn::Cloneable<IdentityImpl>, public skip::Skippable {
 public:
  IdentityImpl() : Skippable({"identity"}, {}) {}
  void reset() override {}
  void pretty_print(std::ostream& stream) const override { stream << "Identity, " << to_text(); }

  at::Tensor forward(at::Tensor input) {
    stash("identity", input);
    return input;
  }
};
TORCH_MODULE(Identity);

Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding) {
  Conv2d conv(Conv2dOptions(in, out, kernel).stride(stride).padding(padding).bias(false));
  torch::nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
  return conv;
}

// Adds the block's stashed input. If the sizes of input and output differ, the input is first
// brought to the output's size.
class ResidualImpl : public torch::nn::Cloneable<ResidualImpl>, public skip::Skippable {
 public:
  ResidualImpl(int64_t in, int64_t out, int64_t stride)
      : Skippable({}, {"identity"}), in_(in), out_(out), stride_(stride) {
    reset();
  }
  void reset() override {
    if (in_ == out_ && stride_ == 1) return;
    downsample_ = register_module(
        "downsample",
        torch::nn::Sequential(conv(in_, out_, 1, stride_, 0), torch::nn::BatchNorm2d(out_)));
  }
  void pretty_print(std::ostream& stream) const override { stream << "Residual, " << to_text(); }

  at::Tensor forward(const at::Tensor& input) {
    at::Tensor shortcut = pop("identity");
    if (!downsample_.is_empty()) shortcut = downsample_->forward(shortcut);
    return input + shortcut;
  }

 private:
  int64_t in_, out_, stride_;
  torch::nn::Sequential downsample_{nullptr};
};
TORCH_MODULE(Residual);

torch::nn::ReLU relu(bool inplace) { return torch::nn::ReLU(torch::nn::ReLUOptions(inplace)); }

void check(const ResNetOptions& options) {
  internal::check_resnet(options.layers(), options.num_classes(), options.base_planes());
  internal::check_size("in_channels", options.in_channels(), 1, int64_t{1} << 20);
}

}  // namespace

ResNetOptions::ResNetOptions(std::vector<int64_t> layers) : layers_(std::move(layers)) {}

torch::nn::Sequential resnet(const ResNetOptions& options) {
  check(options);
  using torch::nn::BatchNorm2d;
  torch::nn::Sequential model;

  int64_t channels = options.base_planes();
  model->push_back("conv1", options.small_stem() ? conv(options.in_channels(), channels, 3, 1, 1)
                                                 : conv(options.in_channels(), channels, 7, 2, 3));
  model->push_back("bn1", BatchNorm2d(channels));
  model->push_back("relu", relu(false));
  if (!options.small_stem()) internal::push_max_pool(*model);

  int64_t planes = options.base_planes();
  for (size_t group = 0; group < options.layers().size(); ++group, planes *= 2) {
    for (int64_t block = 0; block < options.layers()[group]; ++block) {
      const std::string prefix = internal::block_prefix(group, block);
      const int64_t stride = internal::block_stride(group, block);
      const int64_t out = planes * internal::kExpansion;
      Identity identity;
      Residual residual(channels, out, stride);
      const skip::Namespace ns;
      identity->isolate(ns);
      residual->isolate(ns);

      model->push_back(prefix + "identity", identity);
      model->push_back(prefix + "conv1", conv(channels, planes, 1, 1, 0));
      model->push_back(prefix + "bn1", BatchNorm2d(planes));
      model->push_back(prefix + "relu1", relu(options.inplace()));
      model->push_back(prefix + "conv2", conv(planes, planes, 3, stride, 1));
      model->push_back(prefix + "bn2", BatchNorm2d(planes));
      model->push_back(prefix + "relu2", relu(options.inplace()));
      model->push_back(prefix + "conv3", conv(planes, out, 1, 1, 0));
      model->push_back(prefix + "bn3", BatchNorm2d(out));
      model->push_back(prefix + "residual", residual);
      model->push_back(prefix + "relu3", relu(options.inplace()));
      channels = out;
    }
  }

  internal::push_tail(*model, channels, options.num_classes());
  return model;
}

torch::nn::Sequential resnet50() { return resnet(ResNetOptions({3, 4, 6, 3})); }
torch::nn::Sequential resnet101() { return resnet(ResNetOptions({3, 4, 23, 3})); }
torch::nn::Sequential resnet152() { return resnet(ResNetOptions({3, 8, 36, 3})); }

}  // namespace gpipe::models
