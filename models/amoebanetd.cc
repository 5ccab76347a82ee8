#include "models/amoebanetd.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>
#include <torch/nn/pimpl.h>

#include <array>
#include <ostream>
#include <string>
#include <vector>

namespace gpipe::models {
namespace {

using torch::nn::BatchNorm2d;
using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;
using torch::nn::ReLU;
using torch::nn::Sequential;

using Tensors = std::vector<at::Tensor>;

enum class Op { kNone, kAvgPool3x3, kMaxPool3x3, kMaxPool2x2, kConv1x1, kConv1x7, kConv3x3 };

// One operation of a cell: which of the cell's states it takes, and which operation it is.
struct Gene {
  size_t state;
  Op op;
};

// Five pairs of operations; each pair is summed to a new state (states 2 to 6). Then the states
// that are concatenated to the cell's output, in this order.
struct Genotype {
  std::array<Gene, 10> genes;
  std::vector<size_t> concat;
};

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

using Pair = torch::ExpandingArray<2>;

Conv2d conv(int64_t in, int64_t out, Pair kernel, Pair stride = 1, Pair padding = 0) {
  return Conv2d(Conv2dOptions(in, out, kernel)
                    .stride(stride)
                    .padding(Conv2dOptions::padding_t(padding))
                    .bias(false));
}

// No ReLU here is in-place: several operations read the same state.
void push_conv(Sequential& module, int64_t in, int64_t out, Pair kernel, Pair stride = 1,
               Pair padding = 0) {
  module->push_back(ReLU());
  module->push_back(conv(in, out, kernel, stride, padding));
  module->push_back(BatchNorm2d(out));
}

Sequential relu_conv_bn(int64_t in, int64_t out) {
  Sequential module;
  push_conv(module, in, out, 1);
  return module;
}

Sequential op_module(Op op, int64_t channels, int64_t stride) {
  const int64_t inner = channels / 4;
  Sequential module;
  switch (op) {
    case Op::kNone:
      break;
    case Op::kAvgPool3x3:
    // The genotype says max, but the network that was measured averages.
    case Op::kMaxPool3x3:
      module->push_back(torch::nn::AvgPool2d(
          torch::nn::AvgPool2dOptions(3).stride(stride).padding(1).count_include_pad(false)));
      break;
    case Op::kMaxPool2x2:
      module->push_back(torch::nn::MaxPool2d(torch::nn::MaxPool2dOptions(2).stride(stride)));
      break;
    case Op::kConv1x1:
      push_conv(module, channels, channels, 1, stride);
      break;
    case Op::kConv1x7:
      push_conv(module, channels, inner, 1);
      push_conv(module, inner, inner, Pair({1, 7}), Pair({1, stride}), Pair({0, 3}));
      push_conv(module, inner, inner, Pair({7, 1}), Pair({stride, 1}), Pair({3, 0}));
      push_conv(module, inner, channels, 1);
      break;
    case Op::kConv3x3:
      push_conv(module, channels, inner, 1);
      push_conv(module, inner, inner, 3, stride, 1);
      push_conv(module, inner, channels, 1);
      break;
  }
  return module;
}

// An operation, with its parameters under "module". An empty module is the identity.
class OperationImpl : public torch::nn::Cloneable<OperationImpl> {
 public:
  OperationImpl(Op op, int64_t channels, int64_t stride)
      : op_(op), channels_(channels), stride_(stride) {
    reset();
  }
  void reset() override { module_ = register_module("module", op_module(op_, channels_, stride_)); }
  at::Tensor forward(const at::Tensor& input) {
    return module_->is_empty() ? input : module_->forward(input);
  }

 private:
  Op op_;
  int64_t channels_, stride_;
  Sequential module_{nullptr};
};
TORCH_MODULE(Operation);

// Halves height and width: half of the channels come from the even pixels, half from the odd ones.
class FactorizedReduceImpl : public torch::nn::Cloneable<FactorizedReduceImpl> {
 public:
  FactorizedReduceImpl(int64_t in, int64_t out) : in_(in), out_(out) { reset(); }
  void reset() override {
    conv1_ = register_module("conv1", conv(in_, out_ / 2, 1, 2));
    conv2_ = register_module("conv2", conv(in_, out_ / 2, 1, 2));
    bn_ = register_module("bn", BatchNorm2d(out_));
  }
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor x = at::relu(input);
    // The negative padding drops the first row and column.
    const at::Tensor shifted = at::constant_pad_nd(x, {-1, 1, -1, 1}, 0);
    return bn_->forward(at::cat({conv1_->forward(x), conv2_->forward(shifted)}, 1));
  }

 private:
  int64_t in_, out_;
  Conv2d conv1_{nullptr}, conv2_{nullptr};
  BatchNorm2d bn_{nullptr};
};
TORCH_MODULE(FactorizedReduce);

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

struct CellOptions {
  // Channels of the layer before the previous one, of the previous layer, and within this cell.
  int64_t prev_prev, prev, channels;
  bool reduction;
  // The previous cell was a reduction, so the output of the one before it is twice as high and
  // wide.
  bool after_reduction;
};

// What both kinds of cell share; `Derived` adds forward.
template <typename Derived>
class CellBase : public torch::nn::Cloneable<Derived> {
 public:
  explicit CellBase(const CellOptions& options) : options_(options) { reset(); }

  void reset() override {
    const int64_t channels = options_.channels;
    reduce1_ = this->register_module("reduce1", relu_conv_bn(options_.prev, channels));
    if (options_.after_reduction) {
      factorized_ =
          this->register_module("reduce2", FactorizedReduce(options_.prev_prev, channels));
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

  // Goes through the list, whose modules a clone replaces.
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

// The first cell: the stem gives one tensor, which stands for both inputs.
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

class ClassifyImpl : public torch::nn::Cloneable<ClassifyImpl> {
 public:
  ClassifyImpl(int64_t channels, int64_t num_classes)
      : channels_(channels), num_classes_(num_classes) {
    reset();
  }
  void reset() override {
    pool_ = register_module("pool", torch::nn::AvgPool2d(7));
    fc_ = register_module("fc", torch::nn::Linear(channels_, num_classes_));
  }
  at::Tensor forward(const Tensors& inputs) {
    TORCH_CHECK_VALUE(inputs.size() == 2, "the classifier takes a cell's two outputs, got ",
                      inputs.size(), " tensors");
    return fc_->forward(pool_->forward(inputs[0]).flatten(1));
  }

 private:
  int64_t channels_, num_classes_;
  torch::nn::AvgPool2d pool_{nullptr};
  torch::nn::Linear fc_{nullptr};
};
TORCH_MODULE(Classify);

void check(const AmoebaNetDOptions& options) {
  TORCH_CHECK_VALUE(options.num_layers() >= 0 && options.num_layers() % 3 == 0,
                    "num_layers of AmoebaNet-D must be a multiple of 3 and not negative, since its "
                    "normal cells stand in three equal groups, got ",
                    options.num_layers());
  // The upper limits turn a typing error into a message instead of exhausted memory.
  TORCH_CHECK_VALUE(options.num_layers() <= 3072, "num_layers must be at most 3072, got ",
                    options.num_layers());
  TORCH_CHECK_VALUE(options.num_filters() >= 8 && options.num_filters() <= int64_t{1} << 20,
                    "num_filters must be from 8 to 2^20, got ", options.num_filters());
  TORCH_CHECK_VALUE(options.num_classes() > 0, "num_classes must be positive, got ",
                    options.num_classes());
  TORCH_CHECK_VALUE(options.num_classes() <= int64_t{1} << 24,
                    "num_classes must be at most 2^24, got ", options.num_classes());
}

}  // namespace

Sequential amoebanetd(const AmoebaNetDOptions& options) {
  check(options);
  Sequential model;
  int64_t channels = options.num_filters() / 4;
  int64_t prev_prev = channels;
  int64_t prev = channels;
  bool after_reduction = false;

  // The options of the next cell; a reduction cell doubles the channels.
  auto next_cell = [&](bool reduction) {
    if (reduction) channels *= 2;
    const CellOptions cell{prev_prev, prev, channels, reduction, after_reduction};
    const auto joined = reduction ? reduction_genotype().concat : normal_genotype().concat;
    prev_prev = prev;
    prev = channels * static_cast<int64_t>(joined.size());
    after_reduction = reduction;
    return cell;
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
  model->push_back("classify", Classify(prev, options.num_classes()));
  return model;
}

}  // namespace gpipe::models
