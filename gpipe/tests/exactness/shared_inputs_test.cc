// Tests GPipeOptions::shared_inputs: with inputs that all micro-batches share, results must be as
// exact as with other inputs.

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/several_arguments.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/cpu_options.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using testing::cpu_options;
using testing::EqualsBitwise;
using ::testing::HasSubstr;
using testing::layer;
using torch::Tensor;

constexpr int64_t kWidth = 5;

// A layer that computes linear(x * mask), and passes the mask on.
struct MaskedImpl : nn::Module {
  MaskedImpl() { linear = register_module("linear", nn::Linear(kWidth, kWidth)); }
  Tensor forward(Tensor x, Tensor mask) { return linear->forward(x * mask).tanh(); }
  nn::Linear linear{nullptr};
};

nn::Sequential masked_model() {
  testing::manual_seed(5);
  return nn::Sequential(SeveralArguments<MaskedImpl>(), SeveralArguments<MaskedImpl>(),
                        SeveralArguments<MaskedImpl>(), First());
}

Tensor loss_of(const Tensors& outputs, const Tensors& targets) {
  return at::mse_loss(outputs.at(0), targets.at(0));
}

struct Trained {
  double loss = 0;
  Tensors outputs, gradients;  // gradients of parameters, x and mask
};

Tensors gradients_of(nn::Module& model, const Tensor& x, const Tensor& mask) {
  Tensors gradients;
  for (const Tensor& parameter : model.parameters()) gradients.push_back(parameter.grad());
  gradients.push_back(x.grad());
  gradients.push_back(mask.grad());
  return gradients;
}

struct Data {
  Tensor x = torch::randn({7, kWidth}).requires_grad_();
  Tensor mask = torch::rand({kWidth});
  Tensor target = torch::randn({7, kWidth});
};

// Trains the plain model micro-batch by micro-batch, each with the whole mask.
Trained plain(const Data& data, int64_t chunks) {
  nn::Sequential model = masked_model();
  Trained run;
  Tensors outputs;
  const int64_t each = (7 + chunks - 1) / chunks;
  for (int64_t begin = 0; begin < 7; begin += each) {
    const int64_t rows = std::min(each, 7 - begin);
    const Tensor output = model->forward<Tensor>(Tensors{data.x.narrow(0, begin, rows), data.mask});
    const Tensor loss = loss_of({output}, {data.target.narrow(0, begin, rows)});
    const double share = static_cast<double>(rows) / 7;
    run.loss += share * loss.item<double>();
    loss.backward(torch::full({}, share));
    outputs.push_back(output.detach());
  }
  run.outputs = {torch::cat(outputs)};
  run.gradients = gradients_of(*model, data.x, data.mask);
  return run;
}

GPipeOptions options(std::vector<int64_t> balance, int64_t chunks) {
  return cpu_options(std::move(balance))
      .chunks(chunks)
      .cpu_threads_per_stage(at::get_num_threads())
      .shared_inputs({1});
}

TEST(SharedInputs, AreBitwiseThoseOfThePlainModel) {
  for (const bool mask_learns : {false, true}) {
    for (const int64_t chunks : {1, 2, 3, 7}) {
      const auto data = [&] {
        testing::manual_seed(9);
        Data data;
        data.mask.requires_grad_(mask_learns);
        return data;
      };
      const Trained want = plain(data(), chunks);
      EXPECT_EQ(want.gradients.back().defined(), mask_learns);
      for (const std::vector<int64_t>& balance :
           {std::vector<int64_t>{4}, {1, 3}, {2, 2}, {3, 1}, {1, 1, 1, 1}}) {
        for (const Checkpoint mode :
             {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
          SCOPED_TRACE(::testing::Message() << chunks << " chunks, " << balance.size()
                                            << " stages, mask learns " << mask_learns);
          const Data own = data();
          GPipe pipe(masked_model(), options(balance, chunks).checkpoint(mode));
          const StepResult result = pipe->step({own.x, own.mask}, {own.target}, loss_of,
                                               StepOptions().keep_outputs(true));
          EXPECT_EQ(result.loss, want.loss);
          EXPECT_THAT(result.outputs, EqualsBitwise(want.outputs));
          EXPECT_THAT(gradients_of(*pipe, own.x, own.mask), EqualsBitwise(want.gradients));
          EXPECT_EQ(pipe->evaluate({own.x, own.mask}, {own.target}, loss_of).loss, want.loss);
          const torch::NoGradGuard no_grad;
          EXPECT_THAT(pipe->forward({own.x, own.mask}), EqualsBitwise(want.outputs));
        }
      }
    }
  }
}

// The backwards of a forward run in descending order, but the mask's gradients must still be added
// up from the first micro-batch on.
TEST(SharedInputs, GradientsBehindAForwardAreSummedInAscendingOrder) {
  testing::manual_seed(9);
  Data data;
  data.mask.requires_grad_();
  GPipe pipe(masked_model(), options({2, 2}, 7));
  const Tensors outputs = pipe->forward({data.x, data.mask});
  const Tensor weights = torch::randn({7, kWidth});
  (outputs[0] * weights).sum().backward();
  nn::Sequential model = masked_model();
  Tensor want;
  for (int64_t row = 0; row < 7; ++row) {
    const Tensor mask = data.mask.detach().requires_grad_();
    const Tensor output = model->forward<Tensor>(Tensors{data.x.detach().narrow(0, row, 1), mask});
    output.backward(weights.narrow(0, row, 1));
    want = want.defined() ? want + mask.grad() : mask.grad();
  }
  EXPECT_THAT(data.mask.grad(), EqualsBitwise(want));
}

// A shared input that has as many rows as the mini-batch must not be cut, and a scalar, which has
// no rows, may be shared, too.
TEST(SharedInputs, HaveAnyShape) {
  const torch::NoGradGuard no_grad;
  const auto first = layer<Tensors, Tensor>(
      [](Tensors values) { return values.at(0).matmul(values.at(1)) * values.at(2); });
  GPipe pipe(nn::Sequential(first, nn::Linear(4, 2)),
             cpu_options({1, 1}).chunks(4).shared_inputs({2, 1}));
  const Tensor x = torch::randn({4, 4}), matrix = torch::randn({4, 4}), scale = torch::tensor(2.5);
  Tensors rows;
  for (int64_t row = 0; row < 4; ++row) {
    rows.push_back(
        (*pipe)[1]->as<nn::Linear>()->forward(x.narrow(0, row, 1).matmul(matrix) * scale));
  }
  EXPECT_LT((pipe->forward({x, matrix, scale})[0] - torch::cat(rows)).abs().max().item<double>(),
            1e-5);  // the product of one row may round differently
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

TEST(SharedInputs, MistakesAreNamed) {
  const Data data;
  const auto make = [](const std::vector<int64_t>& shared) {
    return GPipe(masked_model(), cpu_options({2, 2}).chunks(2).shared_inputs(shared));
  };
  EXPECT_THAT(message_of([&] { make({-1}); }), HasSubstr("counted from 0, got [-1]"));
  EXPECT_THAT(message_of([&] { make({1, 1}); }), HasSubstr("names an input twice, got [1, 1]"));
  EXPECT_THAT(message_of([&] {
                make({2})->forward({data.x, data.mask});
              }),
              HasSubstr("there are 2 tensors of input, and shared_inputs names number 2"));
  EXPECT_THAT(message_of([&] {
                make({0, 1})->forward({data.x, data.mask});
              }),
              HasSubstr("at least one is needed to tell the batch size"));
  // An input that is not marked as shared must not be treated as shared, even if its shape would
  // allow that.
  EXPECT_THAT(message_of([&] {
                make({})->forward({data.x, data.mask.unsqueeze(0)});
              }),
              AllOf(HasSubstr("input 1 has 1 rows in dimension 0, but input 0 has 7"),
                    HasSubstr("shared_inputs names those that are not cut")));
}

TEST(SharedInputs, OneTensorMayBeCutAndShared) {
  const Tensor x = at::arange(12, at::kFloat).view({4, 3});
  nn::Sequential model(layer<Tensors, Tensor>(
      [](const Tensors& v) { return v[0].matmul(v[1].t()).sum(1, /*keepdim=*/true); }));
  GPipe pipe(model, cpu_options({1}).chunks(2).shared_inputs({1}));
  const torch::NoGradGuard no_grad;
  const Tensor expected = x.matmul(x.t()).sum(1, /*keepdim=*/true);
  EXPECT_THAT(pipe->forward(Tensors{x, x})[0], EqualsBitwise(expected));
}

TEST(SharedInputs, AnInputBesideThemInTheSameMemoryMayBeChanged) {
  Tensor base = at::arange(-8, 12, at::kFloat).view({5, 4});
  nn::Sequential model(
      layer<Tensors, Tensor>([](const Tensors& v) { return v[0].relu_() * v[1]; }));
  GPipe pipe(model, cpu_options({1}).chunks(2).shared_inputs({1}));
  const torch::NoGradGuard no_grad;
  const Tensor expected = base.narrow(0, 0, 4).relu() * base[4];
  EXPECT_THAT(pipe->forward(Tensors{base.narrow(0, 0, 4), base[4]})[0], EqualsBitwise(expected));
}

TEST(SharedInputs, AnErrorOfALayerIsNotLostBehindAChange) {
  nn::Sequential model(layer<Tensors, Tensors>([](Tensors values) {
                         values.at(1).add_(1);
                         return values;
                       }),
                       layer<Tensors, Tensor>([](const Tensors&) -> Tensor {
                         throw std::runtime_error("the disk is full");
                       }));
  GPipe pipe(model, cpu_options({1, 1}).chunks(2).shared_inputs({1}));
  const torch::NoGradGuard no_grad;
  std::string message;
  try {
    pipe->forward(Tensors{at::ones({4, 2}), at::ones({2})});
  } catch (const std::runtime_error& error) {
    message = error.what();
  }
  EXPECT_THAT(message, AllOf(HasSubstr("the disk is full"), HasSubstr("stage 1")));
}

// A shared input must travel without a copy, because copying a mask of megabytes at each cut would
// take most of the step.
TEST(SharedInputs, TravelWithoutACopy) {
  const Tensor mask = at::ones({2});
  std::mutex mutex;
  std::vector<const void*> seen;
  const auto passes = [&] {
    return layer<Tensors, Tensors>([&](Tensors values) {
      const std::lock_guard<std::mutex> lock(mutex);
      seen.push_back(values.at(1).const_data_ptr());
      return Tensors{values[0] * values[1], values[1]};
    });
  };
  GPipe pipe(nn::Sequential(passes(), passes(), passes(), First()),
             cpu_options({1, 1, 1, 1}).chunks(3).shared_inputs({1}));
  for (const bool records : {false, true}) {
    const torch::AutoGradMode mode(records);
    pipe->forward(Tensors{at::ones({3, 2}).requires_grad_(records), mask});
  }
  EXPECT_EQ(seen.size(), 2U * 3 * 3);
  EXPECT_THAT(seen, ::testing::Each(mask.const_data_ptr()));
}

// Changes must also be found in inference mode, in which tensors do not count their changes, and in
// a stage behind a cut.
TEST(SharedInputs, AreNotChangedInPlaceAnywhere) {
  const auto changes = layer<Tensors, Tensors>([](Tensors values) {
    values.at(1).mul_(2);
    return values;
  });
  const auto passes = layer<Tensors, Tensors>([](Tensors values) { return values; });
  for (const bool first : {true, false}) {
    GPipe pipe(
        first ? nn::Sequential(changes, passes, First()) : nn::Sequential(passes, changes, First()),
        cpu_options({1, 1, 1}).chunks(3).shared_inputs({1}));
    for (const bool inference : {false, true}) {
      const c10::InferenceMode mode(inference);
      const torch::NoGradGuard no_grad;
      const Tensor mask = torch::ones({1});
      EXPECT_EQ(mask.is_inference(), inference);
      EXPECT_THAT(message_of([&] {
                    pipe->forward({torch::ones({3, 1}), mask});
                  }),
                  HasSubstr("GPipeOptions::shared_inputs"))
          << first << inference;
    }
  }
}

TEST(SharedInputs, AreNotChangedInPlace) {
  for (const bool records : {false, true}) {
    const torch::AutoGradMode mode(records);
    const auto changes = layer<Tensors, Tensors>([](Tensors values) {
      values.at(1).add_(1);
      return values;
    });
    for (const int64_t chunks : {1, 3}) {
      GPipe pipe(nn::Sequential(changes, First()),
                 cpu_options({1, 1}).chunks(chunks).shared_inputs({1}));
      EXPECT_THAT(message_of([&] {
                    pipe->forward({torch::ones({3, 1}), torch::ones({1})});
                  }),
                  HasSubstr(records ? "in place" : "GPipeOptions::shared_inputs"));
    }
  }
}

}  // namespace
}  // namespace gpipe
