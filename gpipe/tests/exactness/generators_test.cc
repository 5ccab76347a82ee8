// Tests that a recompute draws the same numbers, whatever a layer draws from: the default
// generators of its device and of the host, a generator that it gives to operators, and fused
// attention, which does not take one.
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/_scaled_dot_product_fused_attention_overrideable.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using testing::device;
using testing::EqualsBitwise;
using testing::on_host;

using Generators = testing::DeviceTest;
using Function = std::function<at::Tensor(const at::Tensor&)>;

constexpr Checkpoint kModes[] = {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever};
constexpr int64_t kChunks = 3;

struct Training {
  Checkpoint mode;
  bool step;
  bool fill_drain;
};

std::vector<Training> all_runs() {
  std::vector<Training> runs;
  for (Checkpoint mode : kModes) {
    runs.push_back({mode, false, true});
    runs.push_back({mode, true, true});
    runs.push_back({mode, true, false});
  }
  return runs;
}

std::string text_of(const Training& run) {
  return std::string(to_text(run.mode)) + (run.step ? ", step" : ", forward") +
         (run.fill_drain ? "" : ", 1F1B");
}

at::Tensor square(const Tensors& outputs, const Tensors&) { return outputs[0].pow(2).mean(); }

// Returns the output and the gradients of the input and the parameters, for two stages that both
// call `make()`'s function between linear layers.
Tensors results(const Training& run, const std::function<Function()>& make) {
  testing::manual_seed(1);
  const nn::Sequential model(nn::Linear(8, 8), testing::layer<at::Tensor, at::Tensor>(make()),
                             nn::Linear(8, 8), testing::layer<at::Tensor, at::Tensor>(make()),
                             nn::Linear(8, 8));
  GPipe pipe(
      model,
      GPipeOptions({2, 3}).devices(testing::devices(2)).chunks(kChunks).checkpoint(run.mode));
  const at::Tensor x = torch::randn({6, 8}).to(device()).requires_grad_();
  testing::manual_seed(2);
  Tensors all;
  if (run.step) {
    StepOptions options;
    options.keep_outputs(true);
    if (run.fill_drain) options.schedule(Schedule::gpipe);
    all = pipe->step({x}, {}, square, options).outputs;
  } else {
    all = {pipe->forward(x)};
    square(all, {}).backward();
    all[0] = all[0].detach();
  }
  all.push_back(x.grad());
  for (const at::Tensor& parameter : pipe->parameters()) all.push_back(parameter.grad());
  for (at::Tensor& tensor : all) tensor = on_host(tensor);
  return all;
}

// With recomputes the results must be those of the same schedule without them. GPUs may sum in
// another order each time (fused attention's backward does), so there the comparison has a
// tolerance.
void expect_as_without_recompute(const std::function<Function()>& make, double rtol = 1e-4,
                                 double atol = 1e-6) {
  for (const Training& run : all_runs()) {
    SCOPED_TRACE(text_of(run));
    const Tensors want = results({Checkpoint::kNever, run.step, run.fill_drain}, make);
    const Tensors have = results(run, make);
    ASSERT_EQ(have.size(), want.size());
    EXPECT_GT(want[1].abs().sum().item<double>(), 0);
    for (size_t k = 0; k < want.size(); ++k) {
      if (device().is_cuda()) {
        EXPECT_TRUE(torch::allclose(have[k], want[k], rtol, atol)) << k;
      } else {
        EXPECT_THAT(have[k], EqualsBitwise(want[k])) << k;
      }
    }
  }
}

TEST_F(Generators, DrawsOfTheDeviceAreRepeated) {
  expect_as_without_recompute([]() -> Function {
    return [](const at::Tensor& x) {
      const at::Tensor order = torch::randperm(x.size(1), x.options().dtype(torch::kLong));
      const at::Tensor kept = at::bernoulli(torch::full_like(x, 0.5));
      return (x * kept * torch::rand_like(x)).index_select(1, order) +
             torch::randint(5, {1}, x.options()) + torch::normal(0, 1, {8}, {}, x.options());
    };
  });
}

// A layer may draw on the host, whatever the device of its stage. These draws must be repeated in
// the recompute, too.
TEST_F(Generators, DrawsOfTheHostAreRepeated) {
  const testing::HostWaitsAllowed waits;  // copies of memory that is not pinned wait
  expect_as_without_recompute([]() -> Function {
    return [](const at::Tensor& x) {
      return x * torch::rand({x.size(1)}).to(x.device()) + torch::randn({1}).item<double>();
    };
  });
}

at::Generator generator_on(c10::Device device, uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(device).clone();
  generator.set_current_seed(seed);
  return generator;
}

TEST_F(Generators, DrawsFromAGeneratorThatTheLayerGivesAreRepeated) {
  for (const bool on_the_device : {true, false}) {
    const testing::HostWaitsAllowed waits;
    uint64_t seed = 0;
    std::vector<at::Generator> generators;
    expect_as_without_recompute([&]() -> Function {
      const c10::Device where = on_the_device ? device(generators.size() % 2) : at::kCPU;
      generators.push_back(generator_on(where, ++seed % 2));
      return [where, generator = generators.back()](const at::Tensor& x) {
        const at::Tensor kept = at::bernoulli(torch::full({x.size(1)}, 0.5, where), generator);
        const at::Tensor factor = at::rand({x.size(1)}, generator, at::TensorOptions(where));
        return x * kept.to(x.device()) * factor.to(x.device());
      };
    });
    // A recompute leaves the layer's own generator as it was. So all generators with one seed have
    // the same state, with recomputes or without.
    ASSERT_GT(generators.size(), 4u);
    for (size_t k = 2; k < generators.size(); ++k) {
      EXPECT_THAT(generators[k].get_state(), EqualsBitwise(generators[k % 2].get_state())) << k;
    }
  }
}

// A layer may seed its generator in each call, in that of the recompute, too.
TEST_F(Generators, DrawsFromAGeneratorThatTheLayerSeedsAreRepeated) {
  expect_as_without_recompute([]() -> Function {
    return [](const at::Tensor& x) {
      at::Generator generator = generator_on(x.device(), 7);
      return x * at::rand({x.size(1)}, generator, x.options());
    };
  });
}

// CUDA has one kind of fused attention for single precision and another one (flash) for half.
constexpr at::ScalarType kPrecisions[] = {at::kFloat, at::kHalf};

Function attention_in(at::ScalarType precision) {
  return [precision](const at::Tensor& x) {
    const at::Tensor heads = x.to(precision).view({1, 1, x.size(0), x.size(1)});
    const at::Tensor keys = heads * 2;
    // LibTorch asks devices that are not its own whether they have fused attention. The fake
    // accelerator has the operator, but it is called directly here.
    const at::Tensor y = x.is_privateuseone()
                             ? std::get<0>(at::_scaled_dot_product_fused_attention_overrideable(
                                   heads, keys, keys, {}, /*dropout_p=*/0.5))
                             : at::scaled_dot_product_attention(heads, keys, keys, {},
                                                                /*dropout_p=*/0.5);
    return y.view(x.sizes()).to(x.scalar_type());
  };
}

TEST_F(Generators, DrawsOfFusedAttentionAreRepeated) {
  expect_as_without_recompute([] { return attention_in(at::kFloat); });
}

TEST_F(Generators, DrawsOfFusedAttentionInHalfPrecisionAreRepeated) {
  // GPUs may add up in another order, and in half precision sums are rounded to 11 bits. So the
  // tolerance is wide.
  expect_as_without_recompute([] { return attention_in(at::kHalf); }, /*rtol=*/1e-2, /*atol=*/1e-3);
}

TEST_F(Generators, DrawsOfFusedAttentionFollowTheSeedAndLeaveTheDefaultGeneratorsAlone) {
  const Training run{Checkpoint::kNever, true, false};
  const auto states = [] {
    Tensors all;
    for (const c10::Device where : {device(0), device(1)}) {
      all.push_back(at::globalContext().defaultGenerator(where).get_state().clone());
    }
    return all;
  };
  for (const at::ScalarType precision : kPrecisions) {
    SCOPED_TRACE(precision);
    const auto make = [precision] { return attention_in(precision); };
    testing::manual_seed(2);  // as results() does before its step
    const Tensors before = states();
    const Tensors want = results(run, make);
    const Tensors after = states();
    // The generators of devices must not change, also if stages share a device. The host's
    // generator changes, because it gives each step its seed.
    if (testing::for_gpus()) {
      for (size_t k = 0; k < before.size(); ++k) EXPECT_THAT(after[k], EqualsBitwise(before[k]));
    }
    EXPECT_THAT(results(run, make)[0], EqualsBitwise(want[0]));
    // Values must be dropped, and not the same ones in each micro-batch.
    GPipe pipe(nn::Sequential(testing::layer<at::Tensor, at::Tensor>(attention_in(precision))),
               GPipeOptions({1}).devices({device()}).chunks(2));
    const at::Tensor half = torch::rand({4, 8});
    const at::Tensor y = on_host(pipe->forward(torch::cat({half, half}).to(device())));
    EXPECT_FALSE(y.narrow(0, 0, 4).equal(y.narrow(0, 4, 4)));
  }
}

}  // namespace
}  // namespace gpipe
