#include "models/amoebanetd_parts.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/relu.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/activation.h>

#include "models/check_size.h"

namespace gpipe::models::internal {

using torch::nn::AvgPool2d;
using torch::nn::BatchNorm2d;
using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;

Conv2d conv(int64_t in, int64_t out, Pair kernel, Pair stride, Pair padding) {
  return Conv2d(Conv2dOptions(in, out, kernel)
                    .stride(stride)
                    .padding(Conv2dOptions::padding_t(padding))
                    .bias(false));
}

void push_relu_conv_bn(torch::nn::SequentialImpl& model, int64_t in, int64_t out, Pair kernel,
                       Pair stride, Pair padding) {
  model.push_back(torch::nn::ReLU());
  model.push_back(conv(in, out, kernel, stride, padding));
  model.push_back(BatchNorm2d(out));
}

bool is_pooling(Op op) {
  return op == Op::kAvgPool3x3 || op == Op::kMaxPool3x3 || op == Op::kMaxPool2x2;
}

void push_op(torch::nn::SequentialImpl& model, Op op, int64_t channels, int64_t stride) {
  const int64_t inner = channels / 4;
  switch (op) {
    case Op::kNone:
      break;
    case Op::kAvgPool3x3:
    // The genotype says max, but the network that torchgpipe measured averages.
    case Op::kMaxPool3x3:
      model.push_back(AvgPool2d(
          torch::nn::AvgPool2dOptions(3).stride(stride).padding(1).count_include_pad(false)));
      break;
    case Op::kMaxPool2x2:
      model.push_back(torch::nn::MaxPool2d(torch::nn::MaxPool2dOptions(2).stride(stride)));
      break;
    case Op::kConv1x1:
      push_relu_conv_bn(model, channels, channels, 1, stride);
      break;
    case Op::kConv3x3:
      push_relu_conv_bn(model, channels, inner, 1);
      push_relu_conv_bn(model, inner, inner, 3, stride, 1);
      push_relu_conv_bn(model, inner, channels, 1);
      break;
    case Op::kConv1x7:
      push_relu_conv_bn(model, channels, inner, 1);
      push_relu_conv_bn(model, inner, inner, Pair({1, 7}), Pair({1, stride}), Pair({0, 3}));
      push_relu_conv_bn(model, inner, inner, Pair({7, 1}), Pair({stride, 1}), Pair({3, 0}));
      push_relu_conv_bn(model, inner, channels, 1);
      break;
  }
}

FactorizedReduceImpl::FactorizedReduceImpl(int64_t in, int64_t out, const std::string& conv_name,
                                           Shift shift)
    : in_(in), out_(out), conv_name_(conv_name), shift_(shift) {
  reset();
}

void FactorizedReduceImpl::reset() {
  conv1_ = register_module(conv_name_ + "1", conv(in_, out_ / 2, 1, 2));
  conv2_ = register_module(conv_name_ + "2", conv(in_, out_ / 2, 1, 2));
  bn_ = register_module("bn", BatchNorm2d(out_));
}

at::Tensor FactorizedReduceImpl::forward(const at::Tensor& input) {
  const at::Tensor x = at::relu(input);
  const at::Tensor shifted = shift_(x);
  return bn_->forward(at::cat({conv1_->forward(x), conv2_->forward(shifted)}, 1));
}

ClassifierImpl::ClassifierImpl(int64_t channels, int64_t num_classes,
                               const std::string& linear_name, size_t from)
    : channels_(channels), num_classes_(num_classes), linear_name_(linear_name), from_(from) {
  reset();
}

void ClassifierImpl::reset() {
  pool_ = register_module("pool", AvgPool2d(7));
  linear_ = register_module(linear_name_, torch::nn::Linear(channels_, num_classes_));
}

at::Tensor ClassifierImpl::forward(const std::vector<at::Tensor>& inputs) {
  TORCH_CHECK_VALUE(inputs.size() == 2, "the classifier takes a cell's two outputs, got ",
                    inputs.size(), " tensors");
  return linear_->forward(pool_->forward(inputs[from_]).flatten(1));
}

CellOptions CellWidths::next(bool reduction, size_t joined) {
  if (reduction) channels_ *= 2;
  const CellOptions cell{prev_prev_, prev_, channels_, reduction, after_reduction_};
  prev_prev_ = prev_;
  prev_ = channels_ * static_cast<int64_t>(joined);
  after_reduction_ = reduction;
  return cell;
}

void check_widths(int64_t num_filters, int64_t num_classes) {
  check_size("num_filters", num_filters, 8, int64_t{1} << 20);
  check_size("num_classes", num_classes, 1, int64_t{1} << 24);
}

}  // namespace gpipe::models::internal
