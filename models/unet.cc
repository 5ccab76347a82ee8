#include "models/unet.h"

#include <ATen/Functions.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/pooling.h>
#include <torch/nn/modules/upsampling.h>
#include <torch/nn/pimpl.h>

#include <ostream>
#include <string>
#include <vector>

#include "models/check_size.h"
#include "skip/skippable.h"

namespace gpipe::models {
namespace {

using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;

// Stashes its input unchanged.
class StashImpl : public torch::nn::Cloneable<StashImpl>, public skip::Skippable {
 public:
  StashImpl() : Skippable({"skip"}, {}) {}
  void reset() override {}
  void pretty_print(std::ostream& stream) const override { stream << "Stash, " << to_text(); }

  at::Tensor forward(at::Tensor input) {
    stash("skip", input);
    return input;
  }
};
TORCH_MODULE(Stash);

// Concatenates its input and the stashed tensor along the channels, the input first.
class PopCatImpl : public torch::nn::Cloneable<PopCatImpl>, public skip::Skippable {
 public:
  PopCatImpl() : Skippable({}, {"skip"}) {}
  void reset() override {}
  void pretty_print(std::ostream& stream) const override { stream << "PopCat, " << to_text(); }

  at::Tensor forward(at::Tensor input) {
    const at::Tensor skip = pop("skip");
    // Pooling an odd size drops a row or column. The upsampled input then lacks that row or column
    // at its end, so the difference is padded.
    const int64_t rows = skip.size(2) - input.size(2);
    const int64_t columns = skip.size(3) - input.size(3);
    if (rows != 0 || columns != 0) input = at::constant_pad_nd(input, {0, columns, 0, rows}, 0);
    return at::cat({input, skip}, 1);
  }
};
TORCH_MODULE(PopCat);

// Appends `count` times convolution, dropout, norm, activation, named by `prefix` and a number.
void push_stack(torch::nn::Sequential& model, const std::string& prefix, int64_t in, int64_t mid,
                int64_t out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const std::string name = prefix + std::to_string(i) + "_";
    const int64_t from = i == 0 ? in : mid;
    const int64_t to = i == count - 1 ? out : mid;
    model->push_back(name + "conv", Conv2d(Conv2dOptions(from, to, 3).padding(1).bias(false)));
    model->push_back(name + "dropout", torch::nn::Dropout2d(0.1));
    model->push_back(name + "norm", torch::nn::InstanceNorm2d(to));
    model->push_back(name + "relu",
                     torch::nn::LeakyReLU(torch::nn::LeakyReLUOptions().negative_slope(0.01)));
  }
}

void check(const UNetOptions& options) {
  // More than 24 halvings would need images of 33 million pixels a side, and the number of channels
  // would overflow.
  internal::check_size("depth of a U-Net", options.depth(), 1, 24);
  internal::check_size("num_convs", options.num_convs(), 1, 1024);
  // The last decoder has half as many.
  internal::check_size("base_channels", options.base_channels(), 2, int64_t{1} << 20);
  internal::check_size("in_channels", options.in_channels(), 1, int64_t{1} << 20);
  internal::check_size("out_channels", options.out_channels(), 1, int64_t{1} << 20);
}

}  // namespace

torch::nn::Sequential unet(const UNetOptions& options) {
  check(options);
  const int64_t depth = options.depth();
  const int64_t convs = options.num_convs();
  auto channels = [&options](int64_t level) { return options.base_channels() << level; };
  std::vector<skip::Namespace> levels;
  for (int64_t level = 0; level < depth; ++level) levels.emplace_back();

  torch::nn::Sequential model;
  for (int64_t level = 0; level < depth; ++level) {
    const std::string name = "encoder_" + std::to_string(level) + "_";
    const int64_t in = level == 0 ? options.in_channels() : channels(level - 1);
    push_stack(model, name + "encode_", in, channels(level), channels(level), convs);
    Stash stash;
    stash->isolate(levels[level]);
    model->push_back(name + "skip", stash);
    model->push_back(name + "down", torch::nn::MaxPool2d(2));
  }

  push_stack(model, "bottleneck_0_", channels(depth - 1), channels(depth), channels(depth - 1),
             convs);

  for (int64_t level = depth - 1; level >= 0; --level) {
    const std::string name = "decoder_" + std::to_string(depth - 1 - level) + "_";
    const int64_t out = channels(level) / 2;
    model->push_back(name + "up", torch::nn::Upsample(torch::nn::UpsampleOptions()
                                                          .scale_factor(std::vector<double>{2, 2})
                                                          .mode(torch::kNearest)));
    PopCat pop_cat;
    pop_cat->isolate(levels[level]);
    model->push_back(name + "skip", pop_cat);
    push_stack(model, name + "decode_", channels(level + 1), out, out, convs);
  }

  model->push_back(
      "segment",
      Conv2d(Conv2dOptions(options.base_channels() / 2, options.out_channels(), 1).bias(false)));
  return model;
}

}  // namespace gpipe::models
