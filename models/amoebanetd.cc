#include "models/amoebanetd.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>

#include <ostream>
#include <string>
#include <vector>

#include "models/amoebanetd_parts.h"

namespace gpipe::models {
namespace internal {
namespace {

using torch::nn::BatchNorm2d;
using torch::nn::Conv2d;
using torch::nn::Sequential;

using Tensors = std::vector<at::Tensor>;

const Genotype& normal_genotype() {
  static const Genotype genotype = {{{{1, Op::kConv1x1},
                                      {1, Op::kMaxPool3x3},
                                      {1, Op::kNone},
                                      {0, Op::kConv1x7},
                                      {0, Op::kConv1x1},
                                      {0, Op::kConv1x7},
                                      {2, Op::kMaxPool3x3},
                                      {2, Op::kNone},
                                      {1, Op::kAvgPool3x3},
                                      {5, Op::kConv1x1}}},
                                    {0, 3, 4, 6}};
  return genotype;
}

const Genotype& reduction_genotype() {
  static const Genotype genotype = {{{{0, Op::kMaxPool2x2},
                                      {0, Op::kMaxPool3x3},
                                      {2, Op::kNone},
                                      {1, Op::kConv3x3},
                                      {2, Op::kConv1x7},
                                      {2, Op::kMaxPool3x3},
                                      {3, Op::kNone},
                                      {1, Op::kMaxPool2x2},
                                      {2, Op::kAvgPool3x3},
                                      {3, Op::kConv1x1}}},
                                    {4, 5, 6}};
  return genotype;
}

Sequential relu_conv_bn(int64_t in, int64_t out) {
  Sequential module;
  push_relu_conv_bn(*module, in, out, 1);
  return module;
}

// An operation of a cell, with its parameters under "module". An empty module is the identity.
class OperationImpl : public torch::nn::Cloneable<OperationImpl> {
 public:
  OperationImpl(Op op, int64_t channels, int64_t stride)
      : op_(op), channels_(channels), stride_(stride) {
    reset();
  }
  void reset() override {
    Sequential layers;
    push_op(*layers, op_, channels_, stride_);
    module_ = register_module("module", layers);
  }
  at::Tensor forward(const at::Tensor& input) {
    return module_->is_empty() ? input : module_->forward(input);
  }

 private:
  Op op_;
  int64_t channels_, stride_;
  Sequential module_{nullptr};
};
TORCH_MODULE(Operation);

at::Tensor shifted(const at::Tensor& x) {
  // The negative padding drops the first row and column.
  return at::constant_pad_nd(x, {-1, 1, -1, 1}, 0);
}

class StemImpl : public torch::nn::Cloneable<StemImpl> {
 public:
  explicit StemImpl(int64_t channels) : channels_(channels) { reset(); }
  void reset() override {
    conv_ = register_module("conv", conv(3, channels_, 3, 2, 1));
    bn_ = register_module("bn", BatchNorm2d(channels_));
  }
  at::Tensor forward(const at::Tensor& input) {
    return bn_->forward(conv_->forward(at::relu(input)));
  }

 private:
  int64_t channels_;
  Conv2d conv_{nullptr};
  BatchNorm2d bn_{nullptr};
};
TORCH_MODULE(Stem);

// The common part of both kinds of cells. `Derived` adds forward().
template <typename Derived>
class CellBase : public torch::nn::Cloneable<Derived> {
 public:
  explicit CellBase(const CellOptions& options) : options_(options) { reset(); }

  void reset() override {
    const int64_t channels = options_.channels;
    reduce1_ = this->register_module("reduce1", relu_conv_bn(options_.prev, channels));
    if (options_.after_reduction) {
      factorized_ = this->register_module(
          "reduce2", FactorizedReduce(options_.prev_prev, channels, "conv", shifted));
    } else if (options_.prev_prev != channels) {
      reduce2_ = this->register_module("reduce2", relu_conv_bn(options_.prev_prev, channels));
    }
    operations_ = this->register_module("operations", torch::nn::ModuleList());
    for (const Gene& gene : genotype().genes) {
      const int64_t stride = options_.reduction && gene.state < 2 ? 2 : 1;
      operations_->push_back(Operation(gene.op, channels, stride));
    }
  }

  void pretty_print(std::ostream& stream) const override {
    stream << (options_.reduction ? "ReductionCell(" : "NormalCell(") << options_.channels << ")";
  }

 protected:
  Tensors run(const at::Tensor& previous, const at::Tensor& before_previous) {
    Tensors states = {reduce1_->forward(previous), reduce2(before_previous)};
    const auto& genes = genotype().genes;
    for (size_t i = 0; i < genes.size(); i += 2) {
      states.push_back(operate(i, states[genes[i].state]) +
                       operate(i + 1, states[genes[i + 1].state]));
    }
    Tensors joined;
    for (size_t state : genotype().concat) joined.push_back(states[state]);
    return {at::cat(joined, 1), previous};
  }

 private:
  const Genotype& genotype() const {
    return options_.reduction ? reduction_genotype() : normal_genotype();
  }

  // Takes the operation from the list and keeps no other reference, because a clone replaces the
  // list's modules.
  at::Tensor operate(size_t index, const at::Tensor& input) {
    return operations_->at<OperationImpl>(index).forward(input);
  }

  at::Tensor reduce2(const at::Tensor& input) {
    if (!factorized_.is_empty()) return factorized_->forward(input);
    if (!reduce2_.is_empty()) return reduce2_->forward(input);
    return input;
  }

  CellOptions options_;
  Sequential reduce1_{nullptr}, reduce2_{nullptr};
  FactorizedReduce factorized_{nullptr};
  torch::nn::ModuleList operations_{nullptr};
};

// The first cell. The stem gives one tensor, which serves as both inputs of the cell.
class FirstCellImpl : public CellBase<FirstCellImpl> {
 public:
  using CellBase::CellBase;
  Tensors forward(const at::Tensor& input) { return run(input, input); }
};
TORCH_MODULE(FirstCell);

class CellImpl : public CellBase<CellImpl> {
 public:
  using CellBase::CellBase;
  Tensors forward(const Tensors& inputs) {
    TORCH_CHECK_VALUE(inputs.size() == 2,
                      "a cell takes the outputs of the two layers before it, got ", inputs.size(),
                      " tensors");
    return run(inputs[0], inputs[1]);
  }
};
TORCH_MODULE(Cell);

void check(const AmoebaNetDOptions& options) {
  TORCH_CHECK_VALUE(options.num_layers() >= 0 && options.num_layers() % 3 == 0,
                    "num_layers of AmoebaNet-D must be a multiple of 3 and not negative, since its "
                    "normal cells stand in three equal groups, got ",
                    options.num_layers());
  // The upper limits turn a typing error into a message instead of exhausted memory.
  TORCH_CHECK_VALUE(options.num_layers() <= 3072, "num_layers must be at most 3072, got ",
                    options.num_layers());
  check_widths(options.num_filters(), options.num_classes());
}

Sequential build(const AmoebaNetDOptions& options) {
  check(options);
  Sequential model;
  const int64_t channels = options.num_filters() / 4;
  CellWidths widths(channels);
  const auto next_cell = [&](bool reduction) {
    const Genotype& genotype = reduction ? reduction_genotype() : normal_genotype();
    return widths.next(reduction, genotype.concat.size());
  };

  model->push_back("stem1", Stem(channels));
  model->push_back("stem2", FirstCell(next_cell(true)));
  model->push_back("stem3", Cell(next_cell(true)));
  for (int64_t group = 1; group <= 5; group += 2) {
    const std::string cell = "cell" + std::to_string(group) + "_normal";
    for (int64_t i = 1; i <= options.num_layers() / 3; ++i) {
      model->push_back(cell + std::to_string(i), Cell(next_cell(false)));
    }
    if (group < 5) {
      model->push_back("cell" + std::to_string(group + 1) + "_reduction", Cell(next_cell(true)));
    }
  }
  model->push_back("classify", Classifier(widths.output(), options.num_classes(), "fc", 0));
  return model;
}

}  // namespace
}  // namespace internal

torch::nn::Sequential amoebanetd(const AmoebaNetDOptions& options) {
  return internal::build(options);
}

}  // namespace gpipe::models
