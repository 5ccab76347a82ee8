#include "gpipe/several_arguments.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/utils.h>

#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/cpu_options.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using testing::cpu_options;
using ::testing::ElementsAre;
using testing::EqualsBitwise;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;

// A layer that passes nothing on where the mask is 0.
struct MaskedImpl : nn::Module {
  explicit MaskedImpl(int64_t width) {
    linear = register_module("linear", nn::Linear(width, width));
  }
  Tensor forward(Tensor x, const Tensor& mask) { return torch::tanh(linear(x)) * mask; }
  nn::Linear linear = nullptr;
};
TORCH_MODULE(Masked);

struct SwapImpl : nn::Module {
  std::tuple<Tensor, Tensor> forward(Tensor a, Tensor b) { return {b, a}; }
};

nn::Sequential masked_model() {
  testing::manual_seed(4);
  nn::Sequential model;  // made layer by layer, so that layers draw their parameters in this order
  model->push_back(SeveralArguments<MaskedImpl>(6));
  model->push_back(SeveralArguments<MaskedImpl>(6));
  model->push_back(First());
  model->push_back(nn::Linear(6, 2));
  return model;
}

TEST(SeveralArguments, MaskTravelsThroughTheStagesAndBitsAreThoseOfALoop) {
  at::set_num_threads(1);
  const Tensor x = torch::randn({8, 6});
  const Tensor mask = torch::randint(2, {8, 6}).to(torch::kFloat);
  testing::manual_seed(4);
  Masked first(6), second(6);
  nn::Linear last(6, 2);
  for (const auto& rows : {std::pair<int64_t, int64_t>{0, 4}, {4, 4}}) {
    const Tensor m = mask.narrow(0, rows.first, rows.second);
    const Tensor h = second(first(x.narrow(0, rows.first, rows.second), m), m);
    (last(h).square().mean() * 0.5).backward();
  }
  GPipe pipe(masked_model(), cpu_options({1, 1, 2}).chunks(2));
  pipe->step({x, mask}, {},
             [](const Tensors& outputs, const Tensors&) { return outputs.at(0).square().mean(); });
  const auto parameters = pipe->named_parameters();
  EXPECT_THAT(parameters["0.linear.weight"].grad(), EqualsBitwise(first->linear->weight.grad()));
  EXPECT_THAT(parameters["1.linear.weight"].grad(), EqualsBitwise(second->linear->weight.grad()));
  EXPECT_THAT(parameters["3.weight"].grad(), EqualsBitwise(last->weight.grad()));
}

TEST(SeveralArguments, ParametersKeepTheirKeys) {
  std::vector<std::string> wrapped, plain;
  for (const auto& p : SeveralArguments<MaskedImpl>(6)->named_parameters()) {
    wrapped.push_back(p.key());
  }
  for (const auto& p : Masked(6)->named_parameters()) plain.push_back(p.key());
  EXPECT_EQ(wrapped, plain);
}

TEST(SeveralArguments, ResultsTakeTheFirstPlacesAndTheRestPassesOn) {
  const Tensor a = torch::ones({1}), b = torch::zeros({1}), c = torch::full({1}, 3);
  const Tensors swapped = SeveralArguments<SwapImpl>()->forward({a, b, c});
  ASSERT_EQ(swapped.size(), 3U);
  EXPECT_TRUE(swapped[0].is_same(b));
  EXPECT_TRUE(swapped[1].is_same(a));
  EXPECT_TRUE(swapped[2].is_same(c));
}

TEST(SeveralArguments, MissingArgumentsGetTheirDefaults) {
  nn::TransformerEncoderLayerOptions options(8, 2);
  options.dropout(0);
  SeveralArguments<nn::TransformerEncoderLayerImpl> layer(options);
  const Tensor x = torch::randn({3, 4, 8});
  const Tensor mask = torch::ones({3, 3}).tril().log();
  nn::TransformerEncoderLayerImpl& plain = *layer;
  EXPECT_THAT(layer->forward({x})[0], EqualsBitwise(plain.forward(x)));
  EXPECT_THAT(layer->forward({x, mask})[0], EqualsBitwise(plain.forward(x, mask)));
  // In a Sequential LibTorch asks the layer whether its forward has defaults. The result must be
  // the same.
  EXPECT_THAT(nn::Sequential(layer)->forward<Tensors>(Tensors{x, mask})[0],
              EqualsBitwise(plain.forward(x, mask)));
}

// A class may inherit its forward from a base class, as LibTorch's batch norms do.
TEST(SeveralArguments, MayInheritItsForward) {
  SeveralArguments<nn::BatchNorm1dImpl> layer(3);
  const Tensor x = torch::randn({4, 3}), mask = torch::ones({4, 3});
  const Tensors outputs = layer->forward({x, mask});
  EXPECT_THAT(outputs[0], EqualsBitwise(nn::BatchNorm1d(3)(x)));
  EXPECT_TRUE(outputs[1].is_same(mask));
}

TEST(SeveralArguments, RefusesAListThatIsTooShort) {
  EXPECT_THAT(
      [] {
        SeveralArguments<MaskedImpl>(6)->forward({torch::ones({2, 6})});
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("takes 2 arguments, but was given a list "
                                               "of 1")));
  EXPECT_THAT([] { First()->forward({}); },
              ThrowsMessage<c10::ValueError>(HasSubstr("empty list")));
  EXPECT_THAT([] { SeveralArguments<MaskedImpl>(6)->clone(); },
              ThrowsMessage<c10::NotImplementedError>(HasSubstr("cannot be cloned")));
}

}  // namespace
}  // namespace gpipe
