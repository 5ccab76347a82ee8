#include "models/old_amoebanetd.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>
#include <torch/nn/pimpl.h>

#include <algorithm>
#include <array>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace gpipe::models {
namespace {

using torch::nn::AnyModule;
using torch::nn::BatchNorm2d;
using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;
using torch::nn::ReLU;
using torch::nn::Sequential;

using Tensors = std::vector<at::Tensor>;
using Pair = torch::ExpandingArray<2>;

enum class Op {
  kIdentity,
  kAvgPool3x3,
  kMaxPool3x3,
  kMaxPool2x2,
  kConv1x1,
  kConv3x3,
  kConv1x7,
  // Before the states: what brings a cell's inputs to its width.
  kReluConvBn,
  kFactorizedReduce,
};

// One operation of a cell: which of the cell's states it takes, and which operation it is.
struct Gene {
  size_t state;
  Op op;
};

// Five pairs of operations; each pair is summed to a new state (states 2 to 6).
using Genotype = std::array<Gene, 10>;

const Genotype& normal_genotype() {
  static const Genotype genotype = {{{0, Op::kMaxPool3x3},
                                     {0, Op::kConv1x1},
                                     {2, Op::kIdentity},
                                     {2, Op::kMaxPool3x3},
                                     {0, Op::kIdentity},
                                     {1, Op::kConv1x7},
                                     {1, Op::kConv1x1},
                                     {1, Op::kConv1x7},
                                     {0, Op::kAvgPool3x3},
                                     {3, Op::kConv1x1}}};
  return genotype;
}

const Genotype& reduction_genotype() {
  static const Genotype genotype = {{{1, Op::kMaxPool2x2},
                                     {1, Op::kMaxPool3x3},
                                     {0, Op::kConv3x3},
                                     {2, Op::kIdentity},
                                     {2, Op::kConv1x7},
                                     {2, Op::kMaxPool3x3},
                                     {2, Op::kAvgPool3x3},
                                     {3, Op::kConv1x1},
                                     {3, Op::kIdentity},
                                     {0, Op::kMaxPool2x2}}};
  return genotype;
}

// The states that are concatenated to a cell's output, of both kinds of cell.
constexpr std::array<size_t, 3> kJoined = {4, 5, 6};

Conv2d conv(int64_t in, int64_t out, Pair kernel, Pair stride = 1, Pair padding = 0) {
  return Conv2d(Conv2dOptions(in, out, kernel)
                    .stride(stride)
                    .padding(Conv2dOptions::padding_t(padding))
                    .bias(false));
}

// A Sequential of one tensor, which an AnyModule can hold.
class ChainImpl : public torch::nn::SequentialImpl {
 public:
  at::Tensor forward(const at::Tensor& input) { return SequentialImpl::forward(input); }
};
TORCH_MODULE(Chain);

void push_conv_bn(torch::nn::SequentialImpl& chain, int64_t in, int64_t out) {
  chain.push_back(conv(in, out, 1));
  chain.push_back(BatchNorm2d(out));
}

// No ReLU here is in-place: several operations read the same state.
void push_relu_conv_bn(torch::nn::SequentialImpl& chain, int64_t in, int64_t out, Pair kernel,
                       Pair stride = 1, Pair padding = 0) {
  chain.push_back(ReLU());
  chain.push_back(conv(in, out, kernel, stride, padding));
  chain.push_back(BatchNorm2d(out));
}

// Brings a cell's input to the cell's width.
class ReluConvBnImpl : public torch::nn::Cloneable<ReluConvBnImpl> {
 public:
  ReluConvBnImpl(int64_t in, int64_t out) : in_(in), out_(out) { reset(); }
  void reset() override {
    op_ = Sequential();
    push_relu_conv_bn(*op_, in_, out_, 1);
    register_module("op", op_);
  }
  at::Tensor forward(const at::Tensor& input) { return op_->forward(input); }

 private:
  int64_t in_, out_;
  Sequential op_{nullptr};
};
TORCH_MODULE(ReluConvBn);

// Halves height and width: half of the channels come from the even pixels, half from the odd ones.
class FactorizedReduceImpl : public torch::nn::Cloneable<FactorizedReduceImpl> {
 public:
  FactorizedReduceImpl(int64_t in, int64_t out) : in_(in), out_(out) { reset(); }
  void reset() override {
    conv1_ = register_module("conv_1", conv(in_, out_ / 2, 1, 2));
    conv2_ = register_module("conv_2", conv(in_, out_ / 2, 1, 2));
    bn_ = register_module("bn", BatchNorm2d(out_));
  }
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor x = at::relu(input);
    const at::Tensor shifted = x.slice(2, 1).slice(3, 1);
    return bn_->forward(at::cat({conv1_->forward(x), conv2_->forward(shifted)}, 1));
  }

 private:
  int64_t in_, out_;
  Conv2d conv1_{nullptr}, conv2_{nullptr};
  BatchNorm2d bn_{nullptr};
};
TORCH_MODULE(FactorizedReduce);

struct Operation {
  Op op;
  int64_t in, out;
  int64_t stride = 1;
};

// Empty for the identity. Within a cell `in` is `out`.
AnyModule make_module(const Operation& operation) {
  const auto& [op, in, out, stride] = operation;
  if (op == Op::kIdentity) return {};
  if (op == Op::kReluConvBn) return AnyModule(ReluConvBn(in, out));
  if (op == Op::kFactorizedReduce) return AnyModule(FactorizedReduce(in, out));

  const int64_t inner = out / 4;
  Chain chain;
  if (op == Op::kAvgPool3x3 || op == Op::kMaxPool3x3) {
    // The genotype says max of one of them, but the network that was measured averages in both.
    chain->push_back(torch::nn::AvgPool2d(
        torch::nn::AvgPool2dOptions(3).stride(stride).padding(1).count_include_pad(false)));
    push_conv_bn(*chain, out, out);
  } else if (op == Op::kMaxPool2x2) {
    chain->push_back(torch::nn::MaxPool2d(torch::nn::MaxPool2dOptions(2).stride(stride)));
    push_conv_bn(*chain, out, out);
  } else if (op == Op::kConv1x1) {
    push_relu_conv_bn(*chain, out, out, 1, stride);
  } else if (op == Op::kConv3x3) {
    push_relu_conv_bn(*chain, out, inner, 1);
    push_relu_conv_bn(*chain, inner, inner, 3, stride, 1);
    push_relu_conv_bn(*chain, inner, out, 1);
  } else {
    push_relu_conv_bn(*chain, out, inner, 1);
    push_relu_conv_bn(*chain, inner, inner, Pair({1, 7}), Pair({1, stride}), Pair({0, 3}));
    push_relu_conv_bn(*chain, inner, inner, Pair({7, 1}), Pair({stride, 1}), Pair({3, 0}));
    push_relu_conv_bn(*chain, inner, out, 1);
  }
  return AnyModule(chain);
}

void check_count(const Tensors& inputs, size_t least) {
  TORCH_CHECK_VALUE(inputs.size() >= least, "this layer of a cell takes at least ", least,
                    " tensors, got ", inputs.size());
}

// One tensor, twice: the first cell takes it for the outputs of both cells before it.
class TwinImpl : public torch::nn::Cloneable<TwinImpl> {
 public:
  void reset() override {}
  void pretty_print(std::ostream& stream) const override { stream << "Twin"; }
  Tensors forward(const at::Tensor& input) { return {input, input}; }
};
TORCH_MODULE(Twin);

// Appends the last tensor once more.
class TwinLastImpl : public torch::nn::Cloneable<TwinLastImpl> {
 public:
  void reset() override {}
  void pretty_print(std::ostream& stream) const override { stream << "TwinLast"; }
  Tensors forward(Tensors tensors) {
    check_count(tensors, 1);
    const at::Tensor last = tensors.back();
    tensors.push_back(last);
    return tensors;
  }
};
TORCH_MODULE(TwinLast);

// Applies an operation to the tensor `from`. The result takes the place of tensor `to`, or, if it
// is inserted, the place before it.
class OperateImpl : public torch::nn::Cloneable<OperateImpl> {
 public:
  OperateImpl(const Operation& operation, size_t from, size_t to, bool insert)
      : operation_(operation), from_(from), to_(to), insert_(insert) {
    reset();
  }
  void reset() override {
    module_ = make_module(operation_);
    if (!module_.is_empty()) register_module("module", module_.ptr());
  }
  void pretty_print(std::ostream& stream) const override {
    stream << "Operate(" << from_ << (insert_ ? " before " : " to ") << to_ << ")";
  }

  Tensors forward(Tensors tensors) {
    check_count(tensors, std::max(from_, to_) + 1);
    at::Tensor result =
        module_.is_empty() ? tensors[from_] : module_.forward<at::Tensor>(tensors[from_]);
    if (insert_) {
      tensors.insert(tensors.begin() + static_cast<std::ptrdiff_t>(to_), std::move(result));
    } else {
      tensors[to_] = std::move(result);
    }
    return tensors;
  }

 private:
  Operation operation_;
  size_t from_, to_;
  bool insert_;
  AnyModule module_;
};
TORCH_MODULE(Operate);

// Replaces the tensors `first` and the one after it by their sum.
class MergeImpl : public torch::nn::Cloneable<MergeImpl> {
 public:
  explicit MergeImpl(size_t first) : first_(first) {}
  void reset() override {}
  void pretty_print(std::ostream& stream) const override { stream << "Merge(" << first_ << ")"; }
  Tensors forward(Tensors tensors) {
    check_count(tensors, first_ + 2);
    tensors[first_] = tensors[first_] + tensors[first_ + 1];
    tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(first_) + 1);
    return tensors;
  }

 private:
  size_t first_;
};
TORCH_MODULE(Merge);

// Moves the last tensor, the cell's input, to the front.
class ShiftImpl : public torch::nn::Cloneable<ShiftImpl> {
 public:
  void reset() override {}
  void pretty_print(std::ostream& stream) const override { stream << "Shift"; }
  Tensors forward(Tensors tensors) {
    check_count(tensors, 1);
    std::rotate(tensors.begin(), tensors.end() - 1, tensors.end());
    return tensors;
  }
};
TORCH_MODULE(Shift);

// Ends a cell: keeps the first tensor and concatenates some of the states, which follow it.
class ConcatImpl : public torch::nn::Cloneable<ConcatImpl> {
 public:
  void reset() override {}
  void pretty_print(std::ostream& stream) const override { stream << "Concat"; }
  Tensors forward(const Tensors& tensors) {
    check_count(tensors, kJoined.back() + 2);
    Tensors joined;
    for (size_t state : kJoined) joined.push_back(tensors[state + 1]);
    return {tensors[0], at::cat(joined, 1)};
  }
};
TORCH_MODULE(Concat);

class ClassifierImpl : public torch::nn::Cloneable<ClassifierImpl> {
 public:
  ClassifierImpl(int64_t channels, int64_t num_classes)
      : channels_(channels), num_classes_(num_classes) {
    reset();
  }
  void reset() override {
    pool_ = register_module("pool", torch::nn::AvgPool2d(7));
    classifier_ = register_module("classifier", torch::nn::Linear(channels_, num_classes_));
  }
  at::Tensor forward(const Tensors& inputs) {
    TORCH_CHECK_VALUE(inputs.size() == 2, "the classifier takes a cell's two outputs, got ",
                      inputs.size(), " tensors");
    return classifier_->forward(pool_->forward(inputs[1]).flatten(1));
  }

 private:
  int64_t channels_, num_classes_;
  torch::nn::AvgPool2d pool_{nullptr};
  torch::nn::Linear classifier_{nullptr};
};
TORCH_MODULE(Classifier);

struct CellOptions {
  // Channels of the layer before the previous one, of the previous layer, and within this cell.
  int64_t prev_prev, prev, channels;
  bool reduction;
  // The previous cell was a reduction, so the output of the one before it is twice as high and
  // wide.
  bool after_reduction;
};

// The tensors at a cell's start: the outputs of the cell before the previous one and of the
// previous one. The first two states are made of them. The cell's own input stays the last tensor
// while states are added before it, so a state's number is its place.
void push_cell(Sequential& model, const std::string& prefix, const CellOptions& cell) {
  size_t index = 0;
  const auto push = [&](auto layer) {
    model->push_back(prefix + std::to_string(index++), std::move(layer));
  };
  const int64_t channels = cell.channels;
  push(Operate(Operation{cell.after_reduction ? Op::kFactorizedReduce : Op::kReluConvBn,
                         cell.prev_prev, channels},
               0, 0, /*insert=*/false));
  push(TwinLast());
  push(Operate(Operation{Op::kReluConvBn, cell.prev, channels}, 1, 1, /*insert=*/false));
  const Genotype& genes = cell.reduction ? reduction_genotype() : normal_genotype();
  for (size_t i = 0; i < genes.size(); ++i) {
    const Gene& gene = genes[i];
    const int64_t stride = cell.reduction && gene.state < 2 ? 2 : 1;
    const size_t state = 2 + i / 2;
    push(Operate(Operation{gene.op, channels, channels, stride}, gene.state, state + i % 2,
                 /*insert=*/true));
    if (i % 2 == 1) push(Merge(state));
  }
  push(Shift());
  push(Concat());
}

void check(const OldAmoebaNetDOptions& options) {
  // The upper limits turn a typing error into a message instead of exhausted memory.
  TORCH_CHECK_VALUE(options.num_layers() >= 0 && options.num_layers() <= 1024,
                    "num_layers must be from 0 to 1024, got ", options.num_layers());
  TORCH_CHECK_VALUE(options.num_filters() >= 8 && options.num_filters() <= int64_t{1} << 20,
                    "num_filters must be from 8 to 2^20, got ", options.num_filters());
  TORCH_CHECK_VALUE(options.num_classes() > 0, "num_classes must be positive, got ",
                    options.num_classes());
  TORCH_CHECK_VALUE(options.num_classes() <= int64_t{1} << 24,
                    "num_classes must be at most 2^24, got ", options.num_classes());
}

}  // namespace

Sequential old_amoebanetd(const OldAmoebaNetDOptions& options) {
  check(options);
  Sequential model;
  int64_t channels = options.num_filters() / 4;
  int64_t prev_prev = channels;
  int64_t prev = channels;
  bool after_reduction = false;
  int64_t cells = 0;

  model->push_back("stem_0", ReLU());
  model->push_back("stem_1", conv(3, channels, 3, 2, 1));
  model->push_back("stem_2", BatchNorm2d(channels));
  model->push_back("stem_3", Twin());

  // A reduction cell doubles the channels.
  const auto push = [&](bool reduction) {
    if (reduction) channels *= 2;
    push_cell(model, "cells_" + std::to_string(cells++) + "_",
              {prev_prev, prev, channels, reduction, after_reduction});
    prev_prev = prev;
    prev = channels * static_cast<int64_t>(kJoined.size());
    after_reduction = reduction;
  };
  push(true);
  for (int group = 0; group < 3; ++group) {
    push(true);
    for (int64_t i = 0; i < options.num_layers(); ++i) push(false);
  }
  model->push_back("fin", Classifier(prev, options.num_classes()));
  return model;
}

}  // namespace gpipe::models
