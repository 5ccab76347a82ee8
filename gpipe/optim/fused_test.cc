#include "gpipe/optim/fused.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/saving/saving.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/cpu_options.h"
#include "gpipe/testing/torch_seed.h"
#include "gpipe/zero_optimizer.h"

namespace gpipe {
namespace {

using testing::EqualsBitwise;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::optim::Optimizer;

using Parameters = std::vector<at::Tensor>;
using Make = std::function<std::unique_ptr<Optimizer>(Parameters)>;

template <typename Type, typename Options>
Make make(Options options) {
  return [options](Parameters parameters) {
    return std::make_unique<Type>(std::move(parameters), options);
  };
}

struct Pair {
  std::string name;
  Make plain;
  Make fused;
};

// Returns every optimizer, with each option that takes another path through its kernel.
std::vector<Pair> pairs() {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace)
  std::vector<Pair> result;
  for (const bool amsgrad : {false, true}) {
    for (const double decay : {0.0, 0.1}) {
      const auto adamw = AdamWOptions(0.01).weight_decay(decay).amsgrad(amsgrad);
      const auto adam = AdamOptions(0.01).weight_decay(decay).amsgrad(amsgrad);
      result.push_back({"AdamW", make<AdamW>(adamw), make<FusedAdamW>(adamw)});
      result.push_back({"Adam", make<Adam>(adam), make<FusedAdam>(adam)});
    }
  }
  for (const double momentum : {0.0, 0.9}) {
    for (const bool nesterov : {false, true}) {
      if (nesterov && momentum == 0) continue;
      const auto sgd = SGDOptions(0.1)
                           .momentum(momentum)
                           .dampening(nesterov ? 0 : momentum / 3)
                           .nesterov(nesterov)
                           .weight_decay(0.01);
      result.push_back({"SGD", make<SGD>(sgd), make<FusedSgd>(sgd)});
    }
  }
  const auto adagrad = AdagradOptions(0.1).lr_decay(0.2).weight_decay(0.01);
  result.push_back({"Adagrad", make<Adagrad>(adagrad), make<FusedAdagrad>(adagrad)});
  return result;
}

Parameters parameters(at::ScalarType type) {
  testing::manual_seed(2);
  Parameters result = {torch::randn({4, 3}), torch::randn({7}), torch::randn({3, 2, 5, 5}),
                       torch::randn({0, 3}), torch::randn({2, 3})};
  result[2] = result[2].contiguous(at::MemoryFormat::ChannelsLast);
  result[4] = result[4].t();
  for (at::Tensor& parameter : result) parameter = parameter.to(type).requires_grad_();
  return result;
}

// Sets gradients. In every third step the first parameter has no gradient, so that its number of
// steps differs from the others'. Gradients have other strides than the parameters.
void set_gradients(Parameters& of, int64_t step) {
  for (size_t k = 0; k < of.size(); ++k) {
    of[k].mutable_grad() = k == 0 && step % 3 == 1
                               ? at::Tensor()
                               : torch::randn(of[k].sizes(), of[k].scalar_type()).contiguous();
  }
}

// Returns the largest difference of the two optimizers' parameters after some steps, as a part of
// the largest value.
double difference(const Pair& pair, at::ScalarType type) {
  Parameters plain = parameters(type);
  Parameters fused = parameters(type);
  const std::unique_ptr<Optimizer> of_plain = pair.plain(plain);
  const std::unique_ptr<Optimizer> of_fused = pair.fused(fused);
  for (int64_t step = 0; step < 7; ++step) {
    testing::manual_seed(step);
    set_gradients(plain, step);
    testing::manual_seed(step);
    set_gradients(fused, step);
    of_plain->step();
    of_fused->step();
  }
  double most = 0;
  for (size_t k = 0; k < plain.size(); ++k) {
    if (plain[k].numel() == 0) continue;
    const at::Tensor was = parameters(type)[k];
    EXPECT_GT((fused[k] - was).abs().max().item<double>(), 1e-3) << k << " has not moved";
    const double largest = plain[k].abs().max().item<double>();
    most = std::max(most, (fused[k] - plain[k]).abs().max().item<double>() / largest);
  }
  return most;
}

TEST(Fused, IsTheOptimizerOfLibTorchUpToRounding) {
  for (const Pair& pair : pairs()) {
    EXPECT_LT(difference(pair, at::kDouble), 4e-15) << pair.name;
    EXPECT_LT(difference(pair, at::kFloat), 2e-6) << pair.name;
    try {
      EXPECT_LT(difference(pair, at::kBFloat16), 0.05) << pair.name;
    } catch (const c10::NotImplementedError& error) {
      // Only the kernel of LibTorch 2.11 is wrong. In the default version this exception is a
      // failure.
      EXPECT_THAT(error.what(), HasSubstr("FusedSgd: the fused kernel of LibTorch 2.11"));
    }
  }
}

// An optimizer of one type continues where an optimizer of the other type ended, from a file that
// torch::save has written.
TEST(Fused, ItsStatesAreThoseOfLibTorch) {
  for (const Pair& pair : pairs()) {
    for (const bool fused_first : {false, true}) {
      Parameters here = parameters(at::kDouble);
      const auto first = (fused_first ? pair.fused : pair.plain)(here);
      for (int64_t step = 0; step < 3; ++step) {
        set_gradients(here, step);
        first->step();
      }
      std::stringstream stream;
      torch::save(*first, stream);
      Parameters there;
      for (const at::Tensor& parameter : here) {
        there.push_back(parameter.detach().clone().requires_grad_());
      }
      const auto second = (fused_first ? pair.plain : pair.fused)(there);
      torch::load(*second, stream);
      for (int64_t step = 3; step < 6; ++step) {
        testing::manual_seed(step);
        set_gradients(here, step);
        testing::manual_seed(step);
        set_gradients(there, step);
        first->step();
        second->step();
      }
      for (size_t k = 0; k < here.size(); ++k) {
        EXPECT_TRUE(torch::allclose(here[k], there[k], 1e-13, 1e-14)) << pair.name << " " << k;
      }
    }
  }
}

at::Tensor mean_square(const at::Tensor& output, const at::Tensor& target) {
  return torch::nn::functional::mse_loss(output, target);
}

GPipe pipeline() {
  testing::manual_seed(5);
  return GPipe(torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::Linear(4, 2)),
               testing::cpu_options({1, 1}).chunks(2));
}

void train(GPipe& pipe, const std::function<void()>& step, int64_t steps) {
  const at::Tensor input = torch::arange(15).to(at::kFloat).view({5, 3}) / 10;
  for (int64_t k = 0; k < steps; ++k) {
    pipe->zero_grad();
    pipe->step({input}, {torch::ones({5, 2})}, mean_square);
    step();
  }
}

TEST(Fused, ACheckpointOfOneGoesOnWithTheOther) {
  const auto options = torch::optim::AdamWOptions(0.01);
  for (const bool fused_first : {false, true}) {
    const std::string path = std::string(std::getenv("TEST_TMPDIR")) +
                             (fused_first ? "/of_the_fused_one" : "/of_the_plain_one");
    GPipe pipe = pipeline();
    const auto make_one = [&](GPipe& of, bool fused) {
      return fused ? make<FusedAdamW>(options)(of->local_parameters())
                   : make<torch::optim::AdamW>(options)(of->local_parameters());
    };
    const auto first = make_one(pipe, fused_first);
    train(
        pipe, [&] { first->step(); }, 3);
    save_checkpoint(pipe, *first, {3, 15}, path);
    train(
        pipe, [&] { first->step(); }, 2);
    GPipe resumed = pipeline();
    const auto second = make_one(resumed, !fused_first);
    EXPECT_EQ(load_checkpoint(resumed, *second, path).step, 3);
    train(
        resumed, [&] { second->step(); }, 2);
    for (size_t k = 0; k < pipe->parameters().size(); ++k) {
      EXPECT_TRUE(torch::allclose(pipe->parameters()[k], resumed->parameters()[k], 1e-5, 1e-6));
    }
  }
}

TEST(Fused, IsAZeroOptimizersOptimizer) {
  const Make fused = make<FusedAdamW>(torch::optim::AdamWOptions(0.01));
  GPipe alone = pipeline();
  const auto optimizer = fused(alone->parameters());
  train(
      alone, [&] { optimizer->step(); }, 3);
  GPipe pipe = pipeline();
  ZeroOptimizer zero(pipe, fused);
  train(
      pipe, [&] { zero.step(); }, 3);
  EXPECT_EQ(pipe->parameter_hash(), alone->parameter_hash());
}

// The step throws in the kernel of the other parameter's type, before the kernel of float32 runs.
// So the next step must begin as the first step does.
TEST(Fused, AStepThatThrowsLeavesNoStateThatTheNextOneTakes) {
  for (const Pair& pair : pairs()) {
    const at::Tensor parameter = torch::ones({64}).requires_grad_();
    const at::Tensor other = torch::ones({2}, at::kChar);
    const at::Tensor alone = torch::ones({64}).requires_grad_();
    for (const at::Tensor& each : {parameter, other, alone}) {
      each.mutable_grad() = torch::ones_like(each);
    }
    const auto optimizer = pair.fused({parameter, other});
    EXPECT_ANY_THROW(optimizer->step()) << pair.name;
    EXPECT_THAT(parameter.detach(), EqualsBitwise(torch::ones({64})));
    other.mutable_grad() = at::Tensor();
    const auto fresh = pair.fused({alone});
    for (int64_t step = 0; step < 2; ++step) {
      optimizer->step();
      fresh->step();
    }
    EXPECT_THAT(parameter.detach(), EqualsBitwise(alone.detach())) << pair.name;
  }
}

TEST(Fused, ReturnsTheLossOfItsClosure) {
  for (const Pair& pair : pairs()) {
    const at::Tensor parameter = torch::ones({2}).requires_grad_();
    const auto optimizer = pair.fused({parameter});
    const at::Tensor loss = optimizer->step([&] {
      const at::Tensor sum = parameter.pow(2).sum();
      sum.backward();
      return sum;
    });
    EXPECT_EQ(loss.item<double>(), 2);
    EXPECT_LT(parameter.sum().item<double>(), 2);
  }
}

TEST(Fused, RefusesWhatTheKernelsDoNotTakeBeforeAnythingChanges) {
  const at::Tensor fine = torch::ones({2}).requires_grad_();
  const at::Tensor complex = torch::ones({2}, at::kComplexFloat).requires_grad_();
  const at::Tensor gaps = torch::ones({4}).slice(0, 0, 4, 2).detach().requires_grad_();
  const at::Tensor sparse = torch::ones({2}).requires_grad_();
  for (const auto& [wrong, text] : {std::pair(complex, "parameter 1 is ComplexFloat"),
                                    {gaps, "leave gaps"},
                                    {sparse, "is sparse"}}) {
    fine.mutable_grad() = torch::ones({2});
    wrong.mutable_grad() = torch::ones_like(wrong);
    if (wrong.is_same(sparse)) wrong.mutable_grad() = torch::ones({2}).to_sparse();
    for (const Pair& pair : pairs()) {
      const auto optimizer = pair.fused({fine, wrong});
      EXPECT_THAT([&] { optimizer->step(); }, ThrowsMessage<c10::ValueError>(HasSubstr(text)));
      EXPECT_THAT(fine, EqualsBitwise(torch::ones({2})));
      EXPECT_TRUE(optimizer->state().empty() || pair.name == "Adagrad");
    }
  }
}

TEST(Fused, RefusesAParameterThatIsInAGroupTwice) {
  const at::Tensor twice = torch::ones({2}).requires_grad_();
  twice.mutable_grad() = torch::ones({2});
  for (const Pair& pair : pairs()) {
    const auto optimizer = pair.fused({twice, twice});
    EXPECT_THAT([&] { optimizer->step(); },
                ThrowsMessage<c10::ValueError>(HasSubstr("parameter 1 is in its group a second")));
    EXPECT_THAT(twice, EqualsBitwise(torch::ones({2})));
  }
}

}  // namespace
}  // namespace gpipe
