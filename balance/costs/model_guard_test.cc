#include "balance/costs/model_guard.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <limits>
#include <memory>
#include <vector>

#include "gpipe/testing/bitwise.h"

namespace gpipe::balance {
namespace {

namespace nn = torch::nn;
using at::Tensor;
using testing::EqualsBitwise;

class ModelGuardTest : public ::testing::Test {
 protected:
  ModelGuardTest() : model(nn::Linear(2, 3), nn::BatchNorm1d(3)) {}

  nn::Sequential model;
};

TEST_F(ModelGuardTest, RestoresValues) {
  Tensor weight = model->parameters()[0];
  Tensor mean = model->named_buffers()["1.running_mean"];
  {
    c10::NoGradGuard no_grad;
    weight[0][0] = std::numeric_limits<float>::quiet_NaN();
    mean[0] = -0.0;
  }
  const Tensor weight_before = weight.detach().clone();
  const Tensor mean_before = mean.clone();
  const int64_t version = weight._version();
  {
    ModelGuard guard(*model, c10::kCPU);
    weight.variable_data().fill_(7);  // as a layer may do, without a change of the version counter
    mean.add_(1);
  }
  EXPECT_THAT(weight.detach(), EqualsBitwise(weight_before));
  EXPECT_THAT(mean, EqualsBitwise(mean_before));
  EXPECT_EQ(weight._version(), version);
}

TEST_F(ModelGuardTest, RestoresMemoryThatLayersHaveReplaced) {
  Tensor weight = model->parameters()[0];
  const Tensor before = weight.detach().clone();
  const void* const memory = weight.data_ptr();
  {
    ModelGuard guard(*model, c10::kCPU);
    weight.set_data(at::rand({5, 5}));
  }
  EXPECT_EQ(weight.data_ptr(), memory);
  EXPECT_THAT(weight.detach(), EqualsBitwise(before));
}

TEST_F(ModelGuardTest, RestoresMemoryThatLayersHaveResized) {
  Tensor none = at::empty({0});
  Tensor grown = at::ones({2});
  Tensor shrunk = at::full({1000}, 3.0);
  model->ptr(0)->register_buffer("none", none);
  model->ptr(0)->register_buffer("grown", grown);
  model->ptr(0)->register_buffer("shrunk", shrunk);
  Tensor mean = model->named_buffers()["1.running_mean"];  // a buffer of a later layer
  {
    ModelGuard guard(*model, c10::kCPU);
    none.resize_({100}).fill_(1);
    grown.resize_({100000}).fill_(2);
    shrunk.set_(at::empty({0}).storage()).resize_({1});
    mean.add_(1);
  }
  EXPECT_EQ(none.numel(), 0);
  EXPECT_THAT(grown, EqualsBitwise(at::ones({2})));
  EXPECT_THAT(shrunk, EqualsBitwise(at::full({1000}, 3.0)));
  EXPECT_THAT(mean, EqualsBitwise(at::zeros({3})));
}

TEST_F(ModelGuardTest, TakesGradientsOffAndGivesTheSameOnesBack) {
  Tensor weight = model->parameters()[0];
  const Tensor gradient = at::rand({3, 2});
  weight.mutable_grad() = gradient;
  {
    ModelGuard guard(*model, c10::kCPU);
    EXPECT_FALSE(weight.grad().defined());
    for (Tensor& parameter : model->parameters()) {
      parameter.mutable_grad() = at::ones(parameter.sizes());
    }
  }
  EXPECT_TRUE(weight.grad().is_same(gradient));
  EXPECT_FALSE(model->parameters()[1].grad().defined());
}

TEST_F(ModelGuardTest, RestoresWhatNeedsGradients) {
  model->parameters()[1].set_requires_grad(false);
  {
    ModelGuard guard(*model, c10::kCPU);
    model->parameters()[0].set_requires_grad(false);
    model->parameters()[1].set_requires_grad(true);
  }
  EXPECT_TRUE(model->parameters()[0].requires_grad());
  EXPECT_FALSE(model->parameters()[1].requires_grad());
}

TEST_F(ModelGuardTest, RestoresEachModulesMode) {
  struct OuterImpl : nn::Module {
    OuterImpl() {
      first = register_module("first", nn::Linear(2, 2));
      second = register_module("second", nn::Linear(2, 2));
    }
    Tensor forward(const Tensor& x) { return x; }
    nn::Linear first = nullptr;
    nn::Linear second = nullptr;
  };
  const auto outer = std::make_shared<OuterImpl>();
  model->push_back("outer", outer);
  model->eval();
  outer->second->train();
  {
    ModelGuard guard(*model, c10::kCPU);
    model->train();
    outer->second->eval();
  }
  EXPECT_FALSE(model->is_training());
  EXPECT_FALSE(outer->is_training());
  EXPECT_FALSE(outer->first->is_training());
  EXPECT_TRUE(outer->second->is_training());
}

TEST_F(ModelGuardTest, RestoresTheGenerator) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const Tensor state = generator.get_state();
  const Tensor expected = at::rand({4});
  generator.set_state(state);
  {
    ModelGuard guard(*model, c10::kCPU);
    at::rand({100});
  }
  EXPECT_THAT(at::rand({4}), EqualsBitwise(expected));
}

struct OddImpl : nn::Module {
  OddImpl() {
    const Tensor memory = at::rand({4, 4});
    first = register_parameter("first", memory.narrow(0, 0, 2).detach());
    second = register_parameter("second", memory.narrow(0, 1, 2).detach());  // overlaps the first
    tied = register_parameter("tied", first);
    wide = register_buffer("wide", at::full({1}, 3.0).expand({4}));
    none = register_buffer("none", Tensor());
    sparse = register_buffer("sparse", at::ones({2, 2}).to_sparse());
  }
  Tensor first, second, tied, wide, none, sparse;
};

TEST(ModelGuard, TensorsMayShareMemoryOrHaveNone) {
  const auto owned = std::make_shared<OddImpl>();
  const Tensor first = owned->first.detach().clone();
  const Tensor second = owned->second.detach().clone();
  {
    ModelGuard guard(*owned, c10::kCPU);
    c10::NoGradGuard no_grad;
    owned->first.fill_(1);
    owned->second.fill_(2);
    owned->wide.variable_data().narrow(0, 0, 1).fill_(9);
    owned->sparse.mul_(5);
  }
  EXPECT_THAT(owned->first.detach(), EqualsBitwise(first));
  EXPECT_THAT(owned->second.detach(), EqualsBitwise(second));
  EXPECT_THAT(owned->wide.contiguous(), EqualsBitwise(at::full({4}, 3.0)));
  EXPECT_THAT(owned->sparse.to_dense(), EqualsBitwise(at::ones({2, 2})));
}

}  // namespace
}  // namespace gpipe::balance
