// amoebanetd_parts: the common parts of today's AmoebaNet-D and that of July 2019.
#ifndef MODELS_AMOEBANETD_PARTS_H_
#define MODELS_AMOEBANETD_PARTS_H_

#include <ATen/core/Tensor.h>
#include <torch/expanding_array.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>
#include <torch/nn/pimpl.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::models::internal {

enum class Op { kNone, kAvgPool3x3, kMaxPool3x3, kMaxPool2x2, kConv1x1, kConv3x3, kConv1x7 };

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

using Pair = torch::ExpandingArray<2>;

// A convolution without a bias.
torch::nn::Conv2d conv(int64_t in, int64_t out, Pair kernel, Pair stride = 1, Pair padding = 0);

// The ReLU is not in-place, because several operations read the same state.
void push_relu_conv_bn(torch::nn::SequentialImpl& model, int64_t in, int64_t out, Pair kernel,
                       Pair stride = 1, Pair padding = 0);

bool is_pooling(Op op);

// Appends the layers of an operation: none for kNone, the identity.
void push_op(torch::nn::SequentialImpl& model, Op op, int64_t channels, int64_t stride);

// Halves height and width: half of the channels come from the even pixels, half from the odd ones.
// `shift` drops the first row and column. `conv_name` is what the names of the convolutions begin
// with.
class FactorizedReduceImpl : public torch::nn::Cloneable<FactorizedReduceImpl> {
 public:
  using Shift = at::Tensor (*)(const at::Tensor&);
  FactorizedReduceImpl(int64_t in, int64_t out, const std::string& conv_name, Shift shift);
  void reset() override;
  at::Tensor forward(const at::Tensor& input);

 private:
  int64_t in_, out_;
  std::string conv_name_;
  Shift shift_;
  torch::nn::Conv2d conv1_{nullptr}, conv2_{nullptr};
  torch::nn::BatchNorm2d bn_{nullptr};
};
TORCH_MODULE(FactorizedReduce);

// Computes scores from a cell's output, which is tensor `from` of the two that the cell returns.
// `linear_name` is the name of the linear layer.
class ClassifierImpl : public torch::nn::Cloneable<ClassifierImpl> {
 public:
  ClassifierImpl(int64_t channels, int64_t num_classes, const std::string& linear_name,
                 size_t from);
  void reset() override;
  at::Tensor forward(const std::vector<at::Tensor>& inputs);

 private:
  int64_t channels_, num_classes_;
  std::string linear_name_;
  size_t from_;
  torch::nn::AvgPool2d pool_{nullptr};
  torch::nn::Linear linear_{nullptr};
};
TORCH_MODULE(Classifier);

struct CellOptions {
  // Channels of the layer before the previous one, of the previous layer, and within this cell.
  int64_t prev_prev, prev, channels;
  bool reduction;
  // Whether the previous cell was a reduction. Then the output of the cell before that one is twice
  // as high and wide.
  bool after_reduction;
};

// The options of one cell after the other. A reduction cell doubles the channels.
class CellWidths {
 public:
  // `channels`: the channels of the stem's output.
  explicit CellWidths(int64_t channels) : channels_(channels) {}

  // `joined`: how many states the cell concatenates.
  CellOptions next(bool reduction, size_t joined);
  // Channels of the last cell's output.
  int64_t output() const { return prev_; }

 private:
  int64_t channels_;
  int64_t prev_prev_ = channels_;
  int64_t prev_ = channels_;
  bool after_reduction_ = false;
};

// Throws c10::ValueError for numbers that do not make a network, or make one far larger than any
// that exists.
void check_widths(int64_t num_filters, int64_t num_classes);

}  // namespace gpipe::models::internal

#endif  // MODELS_AMOEBANETD_PARTS_H_
