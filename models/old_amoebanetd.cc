#include "models/old_amoebanetd.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "models/amoebanetd_parts.h"
#include "models/check_size.h"

namespace gpipe::models {
namespace internal {
namespace {

using torch::nn::AnyModule;
using torch::nn::BatchNorm2d;
using torch::nn::ReLU;
using torch::nn::Sequential;

using Tensors = std::vector<at::Tensor>;

const Genotype& normal_genotype() {
  static const Genotype genotype = {{{{0, Op::kMaxPool3x3},
                                      {0, Op::kConv1x1},
                                      {2, Op::kNone},
                                      {2, Op::kMaxPool3x3},
                                      {0, Op::kNone},
                                      {1, Op::kConv1x7},
                                      {1, Op::kConv1x1},
                                      {1, Op::kConv1x7},
                                      {0, Op::kAvgPool3x3},
                                      {3, Op::kConv1x1}}},
                                    {4, 5, 6}};
  return genotype;
}

const Genotype& reduction_genotype() {
  static const Genotype genotype = {{{{1, Op::kMaxPool2x2},
                                      {1, Op::kMaxPool3x3},
                                      {0, Op::kConv3x3},
                                      {2, Op::kNone},
                                      {2, Op::kConv1x7},
                                      {2, Op::kMaxPool3x3},
                                      {2, Op::kAvgPool3x3},
                                      {3, Op::kConv1x1},
                                      {3, Op::kNone},
                                      {0, Op::kMaxPool2x2}}},
                                    {4, 5, 6}};
  return genotype;
}

const Genotype& genotype_of(bool reduction) {
  return reduction ? reduction_genotype() : normal_genotype();
}

// A Sequential of one tensor, which an AnyModule can hold.
class ChainImpl : public torch::nn::SequentialImpl {
 public:
  at::Tensor forward(const at::Tensor& input) { return SequentialImpl::forward(input); }
};
TORCH_MODULE(Chain);

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

at::Tensor shifted(const at::Tensor& x) { return x.slice(2, 1).slice(3, 1); }

using MakeModule = std::function<AnyModule()>;

// Makes the layer that brings a cell's input to the cell's width.
MakeModule relu_conv_bn(int64_t in, int64_t out) {
  return [=] { return AnyModule(ReluConvBn(in, out)); };
}

MakeModule factorized_reduce(int64_t in, int64_t out) {
  return [=] { return AnyModule(FactorizedReduce(in, out, "conv_", shifted)); };
}

// Makes an empty module for the identity. A pooling is followed by a convolution.
MakeModule operation(Op op, int64_t channels, int64_t stride) {
  return [=]() -> AnyModule {
    if (op == Op::kNone) return {};
    Chain chain;
    push_op(*chain, op, channels, stride);
    if (is_pooling(op)) {
      chain->push_back(conv(channels, channels, 1));
      chain->push_back(BatchNorm2d(channels));
    }
    return AnyModule(chain);
  };
}

void check_count(const Tensors& inputs, size_t least) {
  TORCH_CHECK_VALUE(inputs.size() >= least, "this layer of a cell takes at least ", least,
                    " tensors, got ", inputs.size());
}

// Returns its input twice. The first cell takes the two tensors for the outputs of the two cells
// before it.
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
  OperateImpl(MakeModule make, size_t from, size_t to, bool insert)
      : make_(std::move(make)), from_(from), to_(to), insert_(insert) {
    reset();
  }
  void reset() override {
    module_ = make_();
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
  MakeModule make_;
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
  explicit ConcatImpl(std::vector<size_t> states) : states_(std::move(states)) {}
  void reset() override {}
  void pretty_print(std::ostream& stream) const override { stream << "Concat"; }
  Tensors forward(const Tensors& tensors) {
    check_count(tensors, states_.back() + 2);
    Tensors joined;
    for (size_t state : states_) joined.push_back(tensors[state + 1]);
    return {tensors[0], at::cat(joined, 1)};
  }

 private:
  std::vector<size_t> states_;
};
TORCH_MODULE(Concat);

// The tensors at a cell's start: the outputs of the cell before the previous one and of the
// previous one. The first two states are made of them. The cell's own input stays the last tensor
// while states are added before it, so a state's number is its place.
void push_cell(Sequential& model, const std::string& prefix, const CellOptions& cell) {
  size_t index = 0;
  const auto push = [&](auto layer) {
    model->push_back(prefix + std::to_string(index++), std::move(layer));
  };
  const int64_t channels = cell.channels;
  push(Operate(cell.after_reduction ? factorized_reduce(cell.prev_prev, channels)
                                    : relu_conv_bn(cell.prev_prev, channels),
               0, 0, /*insert=*/false));
  push(TwinLast());
  push(Operate(relu_conv_bn(cell.prev, channels), 1, 1, /*insert=*/false));
  const Genotype& genotype = genotype_of(cell.reduction);
  for (size_t i = 0; i < genotype.genes.size(); ++i) {
    const Gene& gene = genotype.genes[i];
    const int64_t stride = cell.reduction && gene.state < 2 ? 2 : 1;
    const size_t state = 2 + i / 2;
    push(Operate(operation(gene.op, channels, stride), gene.state, state + i % 2,
                 /*insert=*/true));
    if (i % 2 == 1) push(Merge(state));
  }
  push(Shift());
  push(Concat(genotype.concat));
}

void check(const OldAmoebaNetDOptions& options) {
  check_size("num_layers", options.num_layers(), 0, 1024);
  check_widths(options.num_filters(), options.num_classes());
}

Sequential build(const OldAmoebaNetDOptions& options) {
  check(options);
  Sequential model;
  const int64_t channels = options.num_filters() / 4;
  CellWidths widths(channels);
  int64_t cells = 0;

  model->push_back("stem_0", ReLU());
  model->push_back("stem_1", conv(3, channels, 3, 2, 1));
  model->push_back("stem_2", BatchNorm2d(channels));
  model->push_back("stem_3", Twin());

  const auto push = [&](bool reduction) {
    push_cell(model, "cells_" + std::to_string(cells++) + "_",
              widths.next(reduction, genotype_of(reduction).concat.size()));
  };
  push(true);
  for (int group = 0; group < 3; ++group) {
    push(true);
    for (int64_t i = 0; i < options.num_layers(); ++i) push(false);
  }
  model->push_back("fin", Classifier(widths.output(), options.num_classes(), "classifier", 1));
  return model;
}

}  // namespace
}  // namespace internal

torch::nn::Sequential old_amoebanetd(const OldAmoebaNetDOptions& options) {
  return internal::build(options);
}

}  // namespace gpipe::models
