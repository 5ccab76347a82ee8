#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "meta/testing/same_on_meta.h"

namespace gpipe {
namespace {

using testing::Case;
using testing::expect_same_on_meta;
using testing::Trial;
using Tensors = std::vector<at::Tensor>;

// Inputs with several orders of strides, with gaps, and without elements.
const std::vector<std::pair<const char*, std::function<at::Tensor(Trial&)>>> kLayouts = {
    {" contiguous",
     [](Trial& trial) {
       return trial.leaf({2, 4, 3, 6});
     }},
    {" channels last",
     [](Trial& trial) {
       return trial.leaf({2, 4, 3, 6}, c10::MemoryFormat::ChannelsLast);
     }},
    {" transposed",
     [](Trial& trial) {
       return trial.leaf({4, 3, 6, 2}).permute({3, 0, 1, 2});
     }},
    {" with gaps",
     [](Trial& trial) {
       return trial.leaf({2, 4, 3, 9}).narrow(3, 1, 6);
     }},
    {" expanded",
     [](Trial& trial) {
       return trial.leaf({2, 1, 3, 6}).expand({2, 4, 3, 6});
     }},
    {" empty",
     [](Trial& trial) {
       return trial.leaf({0, 4, 3, 6});
     }},
    {" double",
     [](Trial& trial) {
       return trial.leaf({2, 4, 3, 6}, at::kDouble);
     }},
    {" half",
     [](Trial& trial) {
       return trial.leaf({2, 4, 3, 6}, at::kBFloat16);
     }},
};

using Function = std::function<at::Tensor(const at::Tensor& x)>;

void expect_same_in_each_layout(const std::vector<std::pair<const char*, Function>>& functions) {
  std::vector<Case> cases;
  for (const auto& [name, function] : functions) {
    for (const auto& [layout, make] : kLayouts) {
      cases.push_back(
          {std::string(name) + layout, [function = function, make = make](Trial& trial) -> Tensors {
             return {function(make(trial))};
           }});
    }
  }
  expect_same_on_meta(cases);
}

// These functions write to their argument, so it must not be a temporary tensor.
template <typename... Arguments>
at::Tensor in_place(at::Tensor& (*function)(at::Tensor&, const Arguments&...), at::Tensor x,
                    std::common_type_t<Arguments>... arguments) {
  return function(x, arguments...);
}

#define GPIPE_OF_X(...)                                                       \
  {                                                                           \
#__VA_ARGS__, [](const at::Tensor& x) { return at::Tensor(__VA_ARGS__); } \
  }

TEST(PointwiseKernels, ActivationsAreAsOnTheCPU) {
  expect_same_in_each_layout({
      GPIPE_OF_X(at::relu(x)),
      GPIPE_OF_X((x + 0).relu_()),
      GPIPE_OF_X(at::relu6(x)),
      GPIPE_OF_X(at::gelu(x)),
      GPIPE_OF_X(at::gelu(x, "tanh")),
      GPIPE_OF_X(at::silu(x)),
      GPIPE_OF_X(in_place(&at::silu_, x + 0)),
      GPIPE_OF_X(at::mish(x)),
      GPIPE_OF_X(at::elu(x)),
      GPIPE_OF_X(at::selu(x)),
      GPIPE_OF_X(at::celu(x)),
      GPIPE_OF_X(at::leaky_relu(x, 0.1)),
      GPIPE_OF_X(in_place(&at::leaky_relu_, x + 0, 0.1)),
      GPIPE_OF_X(at::hardswish(x)),
      GPIPE_OF_X(in_place(&at::hardswish_, x + 0)),
      GPIPE_OF_X(at::hardsigmoid(x)),
      GPIPE_OF_X(at::hardtanh(x)),
      GPIPE_OF_X(in_place(&at::hardtanh_, x + 0, -1, 1)),
      GPIPE_OF_X(at::hardshrink(x)),
      GPIPE_OF_X(at::softshrink(x)),
      GPIPE_OF_X(at::softplus(x)),
      GPIPE_OF_X(at::log_sigmoid(x)),
      GPIPE_OF_X(at::threshold(x, 0.1, 20)),
      GPIPE_OF_X(at::rrelu(x, 0.1, 0.3, false)),
      GPIPE_OF_X(at::rrelu(x, 0.1, 0.3, true)),
      GPIPE_OF_X(at::glu(x, 1)),
      GPIPE_OF_X(at::sigmoid(x)),
      GPIPE_OF_X(at::tanh(x)),
      GPIPE_OF_X(at::softmax(x, 1)),
      GPIPE_OF_X(at::log_softmax(x, -1)),
      GPIPE_OF_X(at::softmax(-x, 0)),
  });
}

TEST(PointwiseKernels, ArithmeticIsAsOnTheCPU) {
  expect_same_in_each_layout({
      GPIPE_OF_X(at::where(x > 0.5, x, x * 2)),
      GPIPE_OF_X(at::where(x > 0.5, x, 1.5)),
      GPIPE_OF_X(at::where((x > 0.5).narrow(1, 0, 1), x, at::zeros({6}, x.options()))),
      GPIPE_OF_X(x.masked_fill(x > 0.5, 0)),
      GPIPE_OF_X((x + 0).masked_fill_(x > 0.5, -1e9)),
      GPIPE_OF_X(at::rsub(x, x * 2)),
      GPIPE_OF_X(1 - x),
      GPIPE_OF_X(1 / (x + 1)),
      GPIPE_OF_X(at::floor_divide(x.detach(), 0.3)),
      GPIPE_OF_X(at::remainder(x, 0.3)),
      GPIPE_OF_X(at::remainder(2, x.detach() + 1)),
      GPIPE_OF_X(at::isnan(x)),
      GPIPE_OF_X(at::isinf(x)),
      GPIPE_OF_X(at::isfinite(x)),
      GPIPE_OF_X(at::nan_to_num(x)),
      GPIPE_OF_X(at::logit(x, 0.1)),
      GPIPE_OF_X(at::abs(x)),
      GPIPE_OF_X(at::clamp(x, 0.1, 0.9)),
      GPIPE_OF_X(at::clamp_min(x, 0.1)),
      GPIPE_OF_X(at::exp(x)),
      GPIPE_OF_X(at::log1p(x)),
      GPIPE_OF_X(at::sqrt(x + 1)),
      GPIPE_OF_X(at::rsqrt(x + 1)),
      GPIPE_OF_X(at::pow(x, 3)),
      GPIPE_OF_X(at::pow(2, x)),
      GPIPE_OF_X(at::erf(x)),
      GPIPE_OF_X(at::sign(x)),
      GPIPE_OF_X(at::maximum(x, x * 2)),
      GPIPE_OF_X(at::addcmul(x, x, x)),
      GPIPE_OF_X(at::addcdiv(x, x, x + 1)),
      GPIPE_OF_X(at::lerp(x, x * 2, 0.3)),
      GPIPE_OF_X(at::logcumsumexp(x, 1)),
      GPIPE_OF_X(at::cumsum(x, 1)),
      GPIPE_OF_X(at::cumprod(x, 1)),
      GPIPE_OF_X(at::bitwise_left_shift(x.detach().to(at::kLong), 2)),
      GPIPE_OF_X(x.detach().to(at::kLong).__lshift__(2)),
      GPIPE_OF_X(x.detach().to(at::kLong).__rshift__(x.detach().to(at::kLong))),
      GPIPE_OF_X(x.detach().to(at::kLong) % 3),
      GPIPE_OF_X(x.clone().fill_(1)),
      GPIPE_OF_X(x.clone().zero_()),
      GPIPE_OF_X(x.clone().copy_(x * 2)),
      GPIPE_OF_X(x.to(at::kDouble)),
      GPIPE_OF_X(x.contiguous()),
  });
}

TEST(PointwiseKernels, PreluIsAsOnTheCPU) {
  std::vector<Case> cases;
  for (const int64_t weights : {1, 4}) {
    for (const auto& [layout, make] : kLayouts) {
      cases.push_back({c10::str(weights, layout), [weights, make = make](Trial& trial) -> Tensors {
                         const at::Tensor x = make(trial);
                         return {at::prelu(x, trial.leaf({weights}, x.scalar_type()))};
                       }});
    }
  }
  expect_same_on_meta(cases);
}

TEST(RandomKernels, ShapesAreAsOnTheCPU) {
  expect_same_in_each_layout({
      GPIPE_OF_X(at::dropout(x, 0.5, true)),
      GPIPE_OF_X(at::dropout(x, 0.5, false)),
      GPIPE_OF_X(at::feature_dropout(x, 0.5, true)),
      GPIPE_OF_X(at::alpha_dropout(x, 0.5, true)),
      GPIPE_OF_X(at::feature_alpha_dropout(x, 0.5, true)),
      GPIPE_OF_X(at::bernoulli(x.detach())),
      GPIPE_OF_X(at::poisson(x.detach())),
      GPIPE_OF_X(at::rand_like(x.detach())),
      GPIPE_OF_X(at::randn_like(x.detach())),
      GPIPE_OF_X(at::randint_like(x.detach(), 5)),
      GPIPE_OF_X(x.detach().clone().normal_()),
      GPIPE_OF_X(x.detach().clone().uniform_()),
      GPIPE_OF_X(x.detach().clone().random_()),
      GPIPE_OF_X(x.detach().clone().random_(5)),
      GPIPE_OF_X(x.detach().clone().exponential_()),
      GPIPE_OF_X(x.detach().clone().bernoulli_(0.5)),
  });
  expect_same_on_meta({
      // The tensor has elements here, because without any the CPU's dropout gives a mask that is
      // not one of booleans.
      {"native dropout",
       [](Trial& trial) -> Tensors {
         const auto [y, mask] = at::native_dropout(trial.leaf({3, 5}), 0.5, true);
         return {y, mask};
       }},
      {"multinomial",
       [](Trial& trial) -> Tensors {
         return {at::multinomial(trial.data({3, 5}), 2), at::multinomial(trial.data({5}), 7, true)};
       }},
      {"randperm",
       [](Trial& trial) -> Tensors {
         const auto options = at::TensorOptions(trial.on_meta() ? at::kMeta : at::kCPU);
         return {at::randperm(5, options), at::randperm(5, options.dtype(at::kInt))};
       }},
  });
}

TEST(RandomKernels, ImpossibleDrawsAreErrors) {
  Trial trial(/*on_meta=*/true);
  EXPECT_TRUE(testing::same_on_meta([](Trial&) { return Tensors(); }));
  EXPECT_THROW(at::multinomial(trial.data({5}), 6), c10::Error);
  EXPECT_THROW(at::multinomial(trial.data({5}), 0), c10::Error);
}

TEST(ReductionKernels, AreAsOnTheCPU) {
  expect_same_in_each_layout({
      GPIPE_OF_X(x.sum()),
      GPIPE_OF_X(x.sum(1)),
      GPIPE_OF_X(x.sum({1, 3}, true)),
      GPIPE_OF_X(x.mean({2, 3})),
      GPIPE_OF_X(x.prod()),
      GPIPE_OF_X(x.prod(1)),
      GPIPE_OF_X(x.detach().to(at::kInt).prod()),
      GPIPE_OF_X(at::nansum(x, 1)),
      GPIPE_OF_X(at::nansum(x)),
      GPIPE_OF_X(x.std()),
      GPIPE_OF_X(x.std(1)),
      GPIPE_OF_X(x.var({1, 2}, true, true)),
      GPIPE_OF_X(std::get<0>(at::var_mean(x, {1}))),
      GPIPE_OF_X(std::get<1>(at::std_mean(x, {-1, 0}))),
      GPIPE_OF_X(x.norm()),
      GPIPE_OF_X(x.norm(2, 1)),
      GPIPE_OF_X(at::logsumexp(x, 1)),
      GPIPE_OF_X(std::get<0>(x.max(1))),
      GPIPE_OF_X(std::get<1>(x.min(1, true))),
      GPIPE_OF_X(x.argmax(1)),
      GPIPE_OF_X(x.amax(1)),
      GPIPE_OF_X(std::get<0>(at::aminmax(x.detach(), 1))),
      GPIPE_OF_X(std::get<0>(x.median(1))),
      GPIPE_OF_X(std::get<1>(x.median(-2, true))),
      GPIPE_OF_X(std::get<0>(x.nanmedian(1))),
      GPIPE_OF_X(std::get<0>(x.kthvalue(1, 1))),
      GPIPE_OF_X(std::get<0>(x.mode(1))),
      GPIPE_OF_X(std::get<0>(x.cummax(1))),
      GPIPE_OF_X(std::get<1>(x.cummin(1))),
      GPIPE_OF_X(at::count_nonzero(x, at::IntArrayRef{1})),
      GPIPE_OF_X(at::count_nonzero(x)),
      GPIPE_OF_X((x > 0).any()),
      GPIPE_OF_X((x > 0).all(1)),
      GPIPE_OF_X(at::cosine_similarity(x, x, 1)),
      GPIPE_OF_X(at::pairwise_distance(x, x * 2)),
  });
  expect_same_on_meta({
      // The tensors have elements here, because without any there is no maximum.
      {"max",
       [](Trial& trial) -> Tensors {
         return {trial.leaf({3, 4}).max()};
       }},
      {"min",
       [](Trial& trial) -> Tensors {
         return {trial.leaf({3, 4}).min()};
       }},
      {"median",
       [](Trial& trial) -> Tensors {
         return {trial.leaf({3, 4}).median()};
       }},
      {"nanmedian",
       [](Trial& trial) -> Tensors {
         return {trial.leaf({3, 4}).nanmedian()};
       }},
      {"trace",
       [](Trial& trial) -> Tensors {
         return {at::trace(trial.leaf({3, 4}))};
       }},
      {"trace of integers",
       [](Trial& trial) -> Tensors {
         return {at::trace(trial.integers(5, {3, 4}).to(at::kInt))};
       }},
      {"dot", [](Trial& trial) -> Tensors { return {at::dot(trial.leaf({3}), trial.leaf({3}))}; }},
      {"vdot",
       [](Trial& trial) -> Tensors { return {at::vdot(trial.leaf({3}), trial.leaf({3}))}; }},
      {"cdist",
       [](Trial& trial) -> Tensors {
         return {at::cdist(trial.leaf({2, 3, 4}), trial.leaf({5, 4})),
                 at::cdist(trial.leaf({2, 3, 4}), trial.leaf({1, 5, 4}), 1)};
       }},
  });
}

}  // namespace
}  // namespace gpipe
