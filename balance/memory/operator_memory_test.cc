// Compares the memory of single operators, planned and real, and checks that
// compared_operators.cc lists exactly the operators that this program has compared. To write that
// list anew, run all tests with GPIPE_COMPARED_OPERATORS=FILE and copy the file's lines into it.

#include <ATen/Functions.h>
#include <ATen/TensorIndexing.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/distance.h>
#include <torch/nn/functional/instancenorm.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/functional/normalization.h>
#include <torch/nn/functional/padding.h>
#include <torch/nn/functional/pooling.h>
#include <torch/nn/functional/upsampling.h>
#include <torch/nn/functional/vision.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "balance/memory/compared_operators.h"
#include "balance/memory/counted_step.h"
#include "gpipe/schedule/search/generators.h"

namespace gpipe::balance {
namespace {

namespace F = torch::nn::functional;
namespace nn = torch::nn;
using at::Tensor;

struct Operator {
  const char* name;
  std::function<Tensor(const Tensor&)> call;
};

const std::vector<int64_t> kRows = {256, 64}, kSequences = {8, 64, 64}, kImages = {4, 16, 32, 32};

Tensor indices(const Tensor& x, int64_t dim) {
  return at::arange(x.size(dim), x.options().dtype(at::kLong).requires_grad(false));
}

void expect_planned(const std::vector<Operator>& operators, const std::vector<int64_t>& input) {
  const std::pair<const char*, ScheduleGenerator> kSchedules[] = {{"whole", &Schedule::one_f_one_b},
                                                                  {"split", &zb_h1}};
  for (const Operator& each : operators) {
    const auto make = [&] {
      nn::Sequential model;
      model->push_back(nn::Linear(input.back(), input.back()));
      for (int k = 0; k < 3; ++k) model->push_back(nn::Functional(each.call));
      // The model has few outputs, so that the peak is not in the loss.
      model->push_back(nn::Linear(input.back(), 1));
      return model;
    };
    for (const auto& [backwards, schedule] : kSchedules) {
      expect_within_what_it_says(compared(make, input, at::kFloat, schedule),
                                 std::string(each.name) + ", " + backwards);
    }
  }
}

TEST(OperatorMemory, OfElementsIsPlanned) {
  expect_planned(
      {
          {"neg, abs", [](const Tensor& x) { return (-x).abs(); }},
          {"arithmetic",
           [](const Tensor& x) { return ((x - 0.5) * (x + 1) / (x.square() + 1)).reciprocal(); }},
          {"in place",
           [](const Tensor& x) {
             Tensor y = x.clone();
             y.narrow(1, 0, 16).mul_(2).add_(1).sub_(0.5).div_(2);
             y.select(1, 3).neg_();
             return y.relu_();
           }},
          {"relu6, clamp", [](const Tensor& x) { return at::relu6(x) + x.clamp(-1, 1); }},
          {"clamp_min, clamp_max", [](const Tensor& x) { return x.clamp_min(-1).clamp_max(1); }},
          {"gelu", [](const Tensor& x) { return at::gelu(x); }},
          {"silu", [](const Tensor& x) { return at::silu(x); }},
          {"mish", [](const Tensor& x) { return at::mish(x); }},
          {"elu, celu, selu", [](const Tensor& x) { return at::selu(at::celu(at::elu(x))); }},
          {"softplus", [](const Tensor& x) { return at::softplus(x); }},
          {"log_sigmoid", [](const Tensor& x) { return at::log_sigmoid(x); }},
          {"hardswish, hardsigmoid, hardtanh",
           [](const Tensor& x) { return at::hardswish(at::hardsigmoid(at::hardtanh(x))); }},
          {"leaky_relu", [](const Tensor& x) { return at::leaky_relu(x, 0.1); }},
          {"softsign, tanhshrink", [](const Tensor& x) { return F::tanhshrink(F::softsign(x)); }},
          {"threshold, softshrink, hardshrink",
           [](const Tensor& x) {
             return at::threshold(x, 0.1, 0) + at::softshrink(x) + at::hardshrink(x);
           }},
          {"glu",
           [](const Tensor& x) {
             return at::glu(at::cat({x, x}, -1));
           }},
          {"prelu", [](const Tensor& x) { return at::prelu(x, at::ones({1}, x.options())); }},
          {"dropout", [](const Tensor& x) { return at::dropout(x, 0.3, true); }},
          {"alpha_dropout", [](const Tensor& x) { return at::alpha_dropout(x, 0.3, true); }},
          {"rrelu", [](const Tensor& x) { return at::rrelu(x, 0.1, 0.3, true); }},
          {"bernoulli", [](const Tensor& x) { return x * at::bernoulli(at::full_like(x, 0.5)); }},
          {"random", [](const Tensor& x) { return x * at::rand_like(x) + at::randn_like(x); }},
          {"exp, sigmoid, tanh",
           [](const Tensor& x) { return at::sigmoid(x) * at::tanh(x).exp(); }},
          {"log, log1p, log2, sqrt, rsqrt",
           [](const Tensor& x) {
             const Tensor y = x.square() + 1;
             return y.log() + y.log1p() + y.log2() + y.sqrt() + y.rsqrt();
           }},
          {"sin, cos, atan", [](const Tensor& x) { return x.sin() + x.cos() * x.atan(); }},
          {"pow", [](const Tensor& x) { return x.abs().pow(1.5); }},
          {"erf, expm1", [](const Tensor& x) { return at::erf(x) + at::expm1(x); }},
          {"lgamma", [](const Tensor& x) { return at::lgamma(x.abs() + 1); }},
          {"lerp, addcmul, addcdiv",
           [](const Tensor& x) {
             return at::lerp(x, x * 2, 0.3) + at::addcmul(x, x, x) +
                    at::addcdiv(x, x, x.square() + 1);
           }},
          {"where", [](const Tensor& x) { return at::where(x > 0, x, x * 0.1); }},
          {"comparisons",
           [](const Tensor& x) {
             return x * ((x >= 0).logical_and(x <= 1).logical_or(x < -1).logical_not() & (x != 2))
                            .to(at::kFloat);
           }},
          {"masked_fill", [](const Tensor& x) { return x.masked_fill(x < 0, 0); }},
          {"maximum, minimum",
           [](const Tensor& x) { return at::maximum(x, x * 0.1) + at::minimum(x, x * 2); }},
          {"nan_to_num", [](const Tensor& x) { return at::nan_to_num(x); }},
          {"sign, round", [](const Tensor& x) { return x + x.sign() + x.round() + x.floor(); }},
          {"to double", [](const Tensor& x) { return x.to(at::kDouble).tanh().to(at::kFloat); }},
          {"detach", [](const Tensor& x) { return x * x.detach(); }},
          {"polar form",
           [](const Tensor& x) {
             const Tensor c = at::view_as_complex(x.view({x.size(0), -1, 2}));
             return at::view_as_real(c * c).reshape(x.sizes());
           }},
      },
      kRows);
}

TEST(OperatorMemory, OfReductionsIsPlanned) {
  expect_planned(
      {
          {"sum, mean",
           [](const Tensor& x) { return x + x.sum(0, true) + x.mean(-1, true) + x.sum(); }},
          {"softmax", [](const Tensor& x) { return at::softmax(x, -1) + at::softmax(x, 0); }},
          {"log_softmax", [](const Tensor& x) { return at::log_softmax(x, -1); }},
          {"cumsum", [](const Tensor& x) { return x.cumsum(-1) + x.cumsum(0); }},
          {"cumprod", [](const Tensor& x) { return x.cumprod(-1); }},
          {"cummax", [](const Tensor& x) { return std::get<0>(x.cummax(-1)); }},
          {"logcumsumexp", [](const Tensor& x) { return x.logcumsumexp(-1); }},
          {"logsumexp", [](const Tensor& x) { return x - x.logsumexp(-1, true); }},
          {"max, min",
           [](const Tensor& x) {
             return x - std::get<0>(x.max(-1, true)) + std::get<0>(x.min(-1, true));
           }},
          {"amax, amin", [](const Tensor& x) { return x - x.amax(-1, true) + x.amin(-1, true); }},
          {"argmax", [](const Tensor& x) { return x + x.argmax(-1, true).to(at::kFloat); }},
          {"median", [](const Tensor& x) { return x - std::get<0>(x.median(-1, true)); }},
          {"kthvalue", [](const Tensor& x) { return x - std::get<0>(x.kthvalue(3, -1, true)); }},
          {"quantile", [](const Tensor& x) { return x - at::quantile(x, 0.5, -1, true); }},
          {"std", [](const Tensor& x) { return x / (x.std(-1, true, true) + 1); }},
          {"var", [](const Tensor& x) { return x / (x.var(0, true, true) + 1); }},
          {"norm", [](const Tensor& x) { return x / (x.norm(2, {-1}, true) + 1); }},
          {"normalize", [](const Tensor& x) { return F::normalize(x); }},
          {"linalg_vector_norm",
           [](const Tensor& x) {
             return x / at::linalg_vector_norm(x, 2, at::IntArrayRef{-1}, true);
           }},
          {"prod", [](const Tensor& x) { return x * x.prod(-1, true); }},
          {"cosine_similarity",
           [](const Tensor& x) { return x * at::cosine_similarity(x, x * 2, -1).unsqueeze(-1); }},
      },
      kRows);
}

TEST(OperatorMemory, OfPickedElementsIsPlanned) {
  expect_planned(
      {
          {"index_select", [](const Tensor& x) { return x.index_select(-1, indices(x, -1)); }},
          {"index", [](const Tensor& x) { return x.index({indices(x, 0)}); }},
          {"index_put",
           [](const Tensor& x) { return at::zeros_like(x).index_put({indices(x, 0)}, x); }},
          {"index_add", [](const Tensor& x) { return at::index_add(x * 2, 0, indices(x, 0), x); }},
          {"gather",
           [](const Tensor& x) {
             return x.gather(-1, at::zeros_like(x, x.options().dtype(at::kLong)));
           }},
          {"scatter_add",
           [](const Tensor& x) {
             return at::zeros_like(x).scatter_add(
                 -1, at::zeros_like(x, x.options().dtype(at::kLong)), x);
           }},
          {"scatter",
           [](const Tensor& x) {
             return at::zeros_like(x).scatter(-1, at::zeros_like(x, x.options().dtype(at::kLong)),
                                              x);
           }},
          {"sort", [](const Tensor& x) { return std::get<0>(x.sort(-1)); }},
          {"sort of columns", [](const Tensor& x) { return std::get<0>(x.sort(0)); }},
          {"argsort",
           [](const Tensor& x) { return x + x.argsort(int64_t{-1}, false).to(at::kFloat); }},
          {"topk",
           [](const Tensor& x) {
             const Tensor top = std::get<0>(x.topk(32, -1));
             return at::cat({top, top}, -1);
           }},
          {"one_hot",
           [](const Tensor& x) {
             return x + at::one_hot((x > 0).to(at::kLong), 4).sum(-1).to(at::kFloat);
           }},
          {"embedding",
           [](const Tensor& x) {
             return x + at::embedding(at::ones({4, 64}, x.options()), indices(x, 0) % 4);
           }},
          {"randperm",
           [](const Tensor& x) {
             return x.index_select(
                 0, at::randperm(x.size(0), x.options().dtype(at::kLong).requires_grad(false)));
           }},
      },
      kRows);
}

TEST(OperatorMemory, OfShapesIsPlanned) {
  expect_planned(
      {
          {"views",
           [](const Tensor& x) {
             return x.unsqueeze(0).squeeze(0).transpose(1, 2).permute({0, 2, 1}).contiguous();
           }},
          {"reshape, flatten, unflatten",
           [](const Tensor& x) {
             const Tensor y = x.transpose(0, 1).reshape({-1, 64}).view({64, -1, 64});
             return y.flatten(1).unflatten(1, {-1, 64}).transpose(0, 1);
           }},
          {"movedim, swapaxes",
           [](const Tensor& x) { return x.movedim(0, 1).swapaxes(0, 1).clone(); }},
          {"expand", [](const Tensor& x) { return x + x.narrow(0, 0, 1).expand_as(x); }},
          {"flip, roll", [](const Tensor& x) { return x.flip(-1).roll(3, 0); }},
          {"tril, triu", [](const Tensor& x) { return x.triu() + x.tril(); }},
          {"repeat",
           [](const Tensor& x) {
             return x.repeat({1, 1, 2}).view({-1, 64, 2, 64}).sum(2);
           }},
          {"repeat_interleave",
           [](const Tensor& x) {
             return x.repeat_interleave(2, -1).view({-1, 64, 64, 2}).mean(-1);
           }},
          {"tile",
           [](const Tensor& x) {
             return x.tile({1, 1, 2}).narrow(-1, 0, 64);
           }},
          {"chunk, split, cat",
           [](const Tensor& x) {
             const auto c = x.chunk(4, -1);
             const auto s = at::cat({c[3], c[1], c[2], c[0]}, -1).split(32, -1);
             return at::cat({s[1], s[0]}, -1);
           }},
          {"unbind, stack", [](const Tensor& x) { return at::stack(x.unbind(0), 0); }},
          {"slice, select, narrow",
           [](const Tensor& x) {
             return x.slice(1, 0, 64, 2).repeat({1, 2, 1}) + x.select(1, 3).unsqueeze(1);
           }},
          {"diagonal, diag_embed",
           [](const Tensor& x) { return x + at::diag_embed(x.diagonal(0, 1, 2)); }},
          {"pad",
           [](const Tensor& x) {
             return F::pad(x, F::PadFuncOptions({2, 2})).narrow(-1, 0, 64);
           }},
          {"reflecting pad",
           [](const Tensor& x) {
             return F::pad(x, F::PadFuncOptions({2, 2}).mode(torch::kReflect)).narrow(-1, 0, 64);
           }},
          {"circular pad",
           [](const Tensor& x) {
             return F::pad(x, F::PadFuncOptions({2, 2}).mode(torch::kCircular)).narrow(-1, 0, 64);
           }},
          {"new tensors",
           [](const Tensor& x) {
             return x + at::ones_like(x) + at::full({64}, 2, x.options()) + x.new_zeros({64}) +
                    x.new_ones({64}) + x.new_full({64}, 3) + at::eye(64, x.options()) +
                    at::linspace(0, 1, 64, x.options());
           }},
      },
      kSequences);
}

TEST(OperatorMemory, OfProductsIsPlanned) {
  expect_planned(
      {
          {"matmul", [](const Tensor& x) { return at::matmul(x, x.select(0, 0)); }},
          {"mm",
           [](const Tensor& x) {
             return at::mm(x.view({-1, 64}), x.select(0, 0)).view(x.sizes());
           }},
          {"bmm, baddbmm",
           [](const Tensor& x) { return at::baddbmm(x, x, at::bmm(x, x.transpose(1, 2))); }},
          {"einsum",
           [](const Tensor& x) {
             return at::einsum("bij,bkj->bik", {x, x}).matmul(x);
           }},
          {"outer",
           [](const Tensor& x) {
             return x + at::outer(x.select(0, 0).select(0, 0), x.select(0, 0).select(0, 1));
           }},
          {"linear", [](const Tensor& x) { return at::linear(x, x.select(0, 0)); }},
          {"cdist", [](const Tensor& x) { return at::cdist(x, x); }},
          {"inverse",
           [](const Tensor& x) { return at::inverse(x + 100 * at::eye(64, x.options())); }},
          {"solve",
           [](const Tensor& x) { return at::linalg_solve(x + 100 * at::eye(64, x.options()), x); }},
      },
      kSequences);
}

TEST(OperatorMemory, OfImagesIsPlanned) {
  expect_planned(
      {
          {"max_pool2d", [](const Tensor& x) { return at::max_pool2d(x, 3, 1, 1); }},
          {"avg_pool2d", [](const Tensor& x) { return at::avg_pool2d(x, 3, 1, 1); }},
          {"adaptive_avg_pool2d",
           [](const Tensor& x) {
             return x * at::adaptive_avg_pool2d(x, {1, 1});
           }},
          {"adaptive_max_pool2d",
           [](const Tensor& x) {
             return x - std::get<0>(at::adaptive_max_pool2d(x, {1, 1}));
           }},
          {"nearest",
           [](const Tensor& x) {
             return at::upsample_nearest2d(x.slice(2, 0, 32, 2).slice(3, 0, 32, 2), {32, 32});
           }},
          {"bilinear",
           [](const Tensor& x) {
             return at::upsample_bilinear2d(x, {32, 32}, true);
           }},
          {"pixel_shuffle",
           [](const Tensor& x) { return at::pixel_unshuffle(at::pixel_shuffle(x, 2), 2); }},
          {"channel_shuffle", [](const Tensor& x) { return at::channel_shuffle(x, 4); }},
          {"im2col, col2im",
           [](const Tensor& x) {
             return at::col2im(at::im2col(x, {3, 3}, {1, 1}, {1, 1}, {1, 1}), {32, 32}, {3, 3},
                               {1, 1}, {1, 1}, {1, 1});
           }},
          {"grid_sample",
           [](const Tensor& x) {
             const Tensor theta = at::eye(2, 3, x.options()).unsqueeze(0).expand({x.size(0), 2, 3});
             return F::grid_sample(x, F::affine_grid(theta, {x.size(0), x.size(1), 32, 32}, false),
                                   F::GridSampleFuncOptions().align_corners(false));
           }},
          {"local_response_norm",
           [](const Tensor& x) {
             return F::local_response_norm(x, F::LocalResponseNormFuncOptions(5));
           }},
          {"instance_norm", [](const Tensor& x) { return F::instance_norm(x); }},
          {"feature_dropout", [](const Tensor& x) { return at::feature_dropout(x, 0.3, true); }},
          {"channels last",
           [](const Tensor& x) {
             return x.contiguous(at::MemoryFormat::ChannelsLast).relu().contiguous();
           }},
      },
      kImages);
}

TEST(OperatorMemory, OfLossesIsPlanned) {
  const auto classes = [](const Tensor& x) {
    return at::zeros({x.size(0)}, x.options().dtype(at::kLong).requires_grad(false));
  };
  expect_planned(
      {
          {"cross_entropy", [=](const Tensor& x) { return x * F::cross_entropy(x, classes(x)); }},
          {"cross_entropy_loss, smoothed",
           [=](const Tensor& x) {
             return x * F::cross_entropy(x, classes(x),
                                         F::CrossEntropyFuncOptions().label_smoothing(0.1));
           }},
          {"nll_loss",
           [=](const Tensor& x) { return x * F::nll_loss(at::log_softmax(x, -1), classes(x)); }},
          {"binary_cross_entropy",
           [](const Tensor& x) {
             return x * F::binary_cross_entropy(at::sigmoid(x), at::zeros_like(x));
           }},
          {"binary_cross_entropy_with_logits",
           [](const Tensor& x) {
             return x * F::binary_cross_entropy_with_logits(x, at::zeros_like(x));
           }},
          {"mse_loss", [](const Tensor& x) { return x * F::mse_loss(x, at::zeros_like(x)); }},
          {"l1_loss", [](const Tensor& x) { return x * F::l1_loss(x, at::zeros_like(x)); }},
          {"smooth_l1_loss",
           [](const Tensor& x) { return x * F::smooth_l1_loss(x, at::zeros_like(x)); }},
          {"huber_loss", [](const Tensor& x) { return x * F::huber_loss(x, at::zeros_like(x)); }},
          {"kl_div",
           [](const Tensor& x) {
             return x * F::kl_div(at::log_softmax(x, -1), at::ones_like(x) / 64);
           }},
          {"soft_margin_loss",
           [](const Tensor& x) { return x * F::soft_margin_loss(x, at::ones_like(x)); }},
          {"triplet_margin_loss",
           [](const Tensor& x) { return x * F::triplet_margin_loss(x, x * 2, x.roll(1, 0)); }},
          {"hinge_embedding_loss",
           [](const Tensor& x) { return x * F::hinge_embedding_loss(x, at::ones_like(x)); }},
          {"poisson_nll_loss",
           [](const Tensor& x) { return x * F::poisson_nll_loss(x, at::ones_like(x)); }},
      },
      kRows);
}

TEST(OperatorMemory, OfOptimizersIsPlanned) {
  for (const char* const optimizer : {"sgd", "momentum", "rmsprop", "adagrad", "adam", "adamw"}) {
    const auto make = [] {
      return nn::Sequential(nn::Linear(256, 256), nn::Tanh(), nn::Linear(256, 256));
    };
    expect_within_what_it_says(
        compared(make, {32, 256}, at::kFloat, &Schedule::one_f_one_b, optimizer), optimizer);
  }
}

// Checks the list of compared operators when all tests have run. If only some tests were asked for,
// or if one has failed, it checks nothing.
class ComparedOperators : public ::testing::Environment {
  void TearDown() override {
    const ::testing::UnitTest& tests = *::testing::UnitTest::GetInstance();
    if (tests.test_to_run_count() != tests.total_test_count() || tests.Failed()) return;
    if (const char* const file = std::getenv("GPIPE_COMPARED_OPERATORS")) {
      std::ofstream out(file);
      size_t column = 0;
      for (const std::string& name : counted_operators()) {
        const std::string shown = name.substr(name.rfind(':') + 1);
        if (column > 0 && column + 1 + shown.size() > 100) column = 0, out << "\n";
        out << (column > 0 ? " " : "") << shown;
        column += shown.size() + 1;
      }
      out << "\n";
    }
    for (const std::string& name : counted_operators()) {
      EXPECT_EQ(compared_operators().count(name), 1) << name << " was compared; list it";
    }
    for (const std::string& name : compared_operators()) {
      EXPECT_EQ(counted_operators().count(name), 1) << name << " is listed; no test compares it";
    }
  }
};

const auto* const kEnvironment = ::testing::AddGlobalTestEnvironment(new ComparedOperators);

TEST(NeverCompared, NamesAnOperatorAndNotItsGradient) {
  EXPECT_EQ(never_compared({"aten::mm", "aten::add"}, c10::kCPU), std::nullopt);
  const auto never = never_compared(
      {"aten::mm", "aten::pdist", "aten::pdist_backward", "mine::op", "aten::zeta_backward"},
      c10::kCPU);
  ASSERT_TRUE(never.has_value());
  EXPECT_EQ(never->operators, "aten::pdist, aten::zeta_backward, mine::op");
  EXPECT_FALSE(never->range.has_value());
  const char* const named = "aten::_scaled_dot_product_efficient_attention_backward";
  EXPECT_EQ(never_compared({named}, c10::kCUDA), std::nullopt);
  EXPECT_TRUE(never_compared({named}, c10::kCPU).has_value());
}

}  // namespace
}  // namespace gpipe::balance
