#include <ATen/ops/convolution.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <sstream>
#include <string>
#include <vector>

#include "meta/meta_kernels.h"
#include "meta/testing/same_on_meta.h"

namespace gpipe {
namespace {

using testing::same_on_meta;
using testing::Trial;

struct Convolution {
  int64_t rank, stride, padding, dilation, groups;
  bool transposed, bias, channels_last;

  std::string name() const {
    std::ostringstream text;
    text << rank << "d stride " << stride << " padding " << padding << " dilation " << dilation
         << " groups " << groups << (transposed ? " transposed" : "") << (bias ? " bias" : "")
         << (channels_last ? " channels last" : "");
    return text.str();
  }

  std::vector<at::Tensor> operator()(Trial& trial) const {
    std::vector<int64_t> input = {2, 4},
                         kernel = {transposed ? 4 : 6, (transposed ? 6 : 4) / groups};
    for (int64_t d = 0; d < rank; ++d) {
      input.push_back(7 + d);
      kernel.push_back(d == 0 ? 3 : 2);
    }
    const auto format = !channels_last ? c10::MemoryFormat::Contiguous
                        : rank == 3    ? c10::MemoryFormat::ChannelsLast3d
                                       : c10::MemoryFormat::ChannelsLast;
    const std::vector<int64_t> all(rank, stride), pads(rank, padding), dilations(rank, dilation),
        extra(rank, transposed && stride > 1 ? 1 : 0);
    const at::Tensor x = trial.leaf(input, format), weight = trial.leaf(kernel);
    const at::Tensor shift = bias ? trial.leaf({6}) : at::Tensor();
    return {at::convolution(x, weight, shift, all, pads, dilations, transposed, extra, groups)};
  }
};

TEST(ConvolutionKernels, EveryConfigurationIsAsOnTheCPU) {
  for (const int64_t rank : {1, 2, 3}) {
    for (const int64_t stride : {1, 2}) {
      for (const int64_t padding : {0, 1}) {
        for (const int64_t dilation : {1, 2}) {
          for (const int64_t groups : {1, 2}) {
            for (const bool transposed : {false, true}) {
              for (const bool bias : {false, true}) {
                for (const bool channels_last : {false, true}) {
                  if (channels_last && rank == 1) continue;
                  const Convolution each = {rank,   stride,     padding, dilation,
                                            groups, transposed, bias,    channels_last};
                  EXPECT_TRUE(same_on_meta(each)) << each.name();
                }
              }
            }
          }
        }
      }
    }
  }
}

// On meta, as on the CPU, a tensor that needs no gradient gets none.
TEST(ConvolutionKernels, GivesOnlyTheGradientsThatAreWanted) {
  const auto convolve = [](const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
    return at::convolution(x, weight, bias, {1}, {1}, {1}, false, {0}, 1);
  };
  testing::expect_same_on_meta({
      {"input",
       [=](Trial& trial) -> std::vector<at::Tensor> {
         return {convolve(trial.leaf({2, 3, 5, 5}), trial.data({4, 3, 3, 3}), trial.data({4}))};
       }},
      {"weight",
       [=](Trial& trial) -> std::vector<at::Tensor> {
         return {convolve(trial.data({2, 3, 5, 5}), trial.leaf({4, 3, 3, 3}), trial.data({4}))};
       }},
      {"bias",
       [=](Trial& trial) -> std::vector<at::Tensor> {
         return {convolve(trial.data({2, 3, 5, 5}), trial.data({4, 3, 3, 3}), trial.leaf({4}))};
       }},
      {"of the gradient",
       [=](Trial& trial) -> std::vector<at::Tensor> {
         const at::Tensor x = trial.leaf({2, 3, 5, 5}), weight = trial.leaf({4, 3, 3, 3});
         const at::Tensor y = convolve(x, weight, trial.leaf({4}));
         return torch::autograd::grad({y.pow(2).sum()}, {x, weight}, {}, true, true);
       }},
      {"channels last weight",
       [=](Trial& trial) -> std::vector<at::Tensor> {
         return {convolve(trial.leaf({2, 3, 5, 5}),
                          trial.leaf({4, 3, 3, 3}, c10::MemoryFormat::ChannelsLast),
                          trial.leaf({4}))};
       }},
      {"a batch of none",
       [=](Trial& trial) -> std::vector<at::Tensor> {
         return {convolve(trial.leaf({0, 3, 5, 5}), trial.leaf({4, 3, 3, 3}), trial.leaf({4}))};
       }},
      {"half",
       [=](Trial& trial) -> std::vector<at::Tensor> {
         return {convolve(trial.leaf({2, 3, 5, 5}, at::kBFloat16),
                          trial.leaf({4, 3, 3, 3}, at::kBFloat16), trial.leaf({4}, at::kBFloat16))};
       }},
  });
}

TEST(ConvolutionKernels, ShapesThatDoNotFitAreErrors) {
  install_meta_kernels();
  Trial trial(/*on_meta=*/true);
  const at::Tensor weight = trial.data({4, 3, 3, 3});
  const auto convolve = [&weight](const at::Tensor& x) {
    return at::convolution(x, weight, {}, {1}, {0}, {1}, false, {0}, 1);
  };
  EXPECT_EQ(convolve(trial.data({2, 3, 3, 3})).sizes(), (at::IntArrayRef{2, 4, 1, 1}));
  EXPECT_THROW(convolve(trial.data({2, 3, 2, 5})), c10::Error);
  EXPECT_THROW(convolve(trial.data({2, 4, 5, 5})), c10::Error);
}

}  // namespace
}  // namespace gpipe
