#include "models/old_resnet.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>

#include <cmath>
#include <functional>
#include <ostream>
#include <string>
#include <utility>

#include "models/resnet_parts.h"

namespace gpipe::models {
namespace {

using torch::nn::AnyModule;
using torch::nn::BatchNorm2d;
using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;

using Tensors = std::vector<at::Tensor>;

void check_pair(const Tensors& inputs) {
  TORCH_CHECK_VALUE(inputs.size() == 2,
                    "a layer of a block takes the convolutions' tensor and the block's input, got ",
                    inputs.size(), " tensors");
}

// Begins a block: returns the block's input twice.
class TwinImpl : public torch::nn::Cloneable<TwinImpl> {
 public:
  void reset() override {}
  void pretty_print(std::ostream& stream) const override { stream << "Twin"; }
  Tensors forward(const at::Tensor& input) { return {input, input}; }
};
TORCH_MODULE(Twin);

// A convolution as in the network that torchgpipe measured: the standard deviation of its weights
// is sqrt(2) times what is usual before a ReLU (He et al., 2015).
Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding) {
  Conv2d conv(Conv2dOptions(in, out, kernel).stride(stride).padding(padding).bias(false));
  torch::nn::init::normal_(conv->weight, 0,
                           2 / std::sqrt(static_cast<double>(kernel * kernel * out)));
  return conv;
}

// Applies a module to the first of two tensors and hands on the other one.
class OnFirstImpl : public torch::nn::Cloneable<OnFirstImpl> {
 public:
  explicit OnFirstImpl(std::function<AnyModule()> make) : make_(std::move(make)) { reset(); }
  void reset() override {
    module_ = make_();
    register_module("module", module_.ptr());
  }
  void pretty_print(std::ostream& stream) const override { stream << "OnFirst"; }

  Tensors forward(const Tensors& inputs) {
    check_pair(inputs);
    return {module_.forward(inputs[0]), inputs[1]};
  }

 private:
  std::function<AnyModule()> make_;
  AnyModule module_;
};
TORCH_MODULE(OnFirst);

OnFirst conv_on_first(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding) {
  return OnFirst([=] { return AnyModule(conv(in, out, kernel, stride, padding)); });
}

OnFirst bn_on_first(int64_t channels) {
  return OnFirst([=] { return AnyModule(BatchNorm2d(channels)); });
}

// Ends a block: adds the block's input to its output. If their sizes differ, the input is first
// brought to the output's size.
class ResidualImpl : public torch::nn::Cloneable<ResidualImpl> {
 public:
  ResidualImpl(int64_t in, int64_t out, int64_t stride) : in_(in), out_(out), stride_(stride) {
    reset();
  }
  void reset() override {
    if (in_ == out_ && stride_ == 1) return;
    downsample_ = register_module(
        "downsample", torch::nn::Sequential(conv(in_, out_, 1, stride_, 0), BatchNorm2d(out_)));
  }
  void pretty_print(std::ostream& stream) const override { stream << "Residual"; }

  at::Tensor forward(const Tensors& inputs) {
    check_pair(inputs);
    if (downsample_.is_empty()) return inputs[0] + inputs[1];
    return inputs[0] + downsample_->forward(inputs[1]);
  }

 private:
  int64_t in_, out_, stride_;
  torch::nn::Sequential downsample_{nullptr};
};
TORCH_MODULE(Residual);

}  // namespace

OldResNetOptions::OldResNetOptions(std::vector<int64_t> layers) : layers_(std::move(layers)) {}

torch::nn::Sequential old_resnet(const OldResNetOptions& options) {
  internal::check_resnet(options.layers(), options.num_classes(), options.base_planes());
  using torch::nn::ReLU;
  torch::nn::Sequential model;

  int64_t channels = options.base_planes();
  model->push_back("conv1", conv(3, channels, 7, 2, 3));
  model->push_back("bn1", BatchNorm2d(channels));
  model->push_back("relu", ReLU());
  internal::push_max_pool(*model);

  int64_t planes = options.base_planes();
  for (size_t group = 0; group < options.layers().size(); ++group, planes *= 2) {
    for (int64_t block = 0; block < options.layers()[group]; ++block) {
      const std::string prefix = internal::block_prefix(group, block);
      const int64_t stride = internal::block_stride(group, block);
      const int64_t out = planes * internal::kExpansion;
      model->push_back(prefix + "twin", Twin());
      model->push_back(prefix + "conv1", conv_on_first(channels, planes, 1, 1, 0));
      model->push_back(prefix + "bn1", bn_on_first(planes));
      model->push_back(prefix + "conv2", conv_on_first(planes, planes, 3, stride, 1));
      model->push_back(prefix + "bn2", bn_on_first(planes));
      model->push_back(prefix + "conv3", conv_on_first(planes, out, 1, 1, 0));
      model->push_back(prefix + "bn3", bn_on_first(out));
      model->push_back(prefix + "residual", Residual(channels, out, stride));
      model->push_back(prefix + "relu", ReLU());
      channels = out;
    }
  }

  internal::push_tail(*model, channels, options.num_classes());
  return model;
}

}  // namespace gpipe::models
