// Tests values that cross the boundary of a stage: in-place changes, identities, lists that begin
// with integers, autocast.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <memory>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/autocast_scope.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/plain_model.h"
#include "gpipe/testing/torch_seed.h"
#include "skip/skippable.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using testing::EqualsBitwise;
using ::testing::HasSubstr;
using testing::PlainModel;

GPipe piped(nn::Sequential model, std::vector<int64_t> balance, int64_t chunks, Checkpoint mode) {
  const size_t partitions = balance.size();
  return GPipe(model, GPipeOptions(std::move(balance))
                          .devices(std::vector<c10::Device>(partitions, c10::kCPU))
                          .chunks(chunks)
                          .checkpoint(mode));
}

nn::ReLU relu_in_place() { return nn::ReLU(nn::ReLUOptions().inplace(true)); }

struct IdentityFunction : torch::autograd::Function<IdentityFunction> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, torch::Tensor x) { return x; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return gradients;
  }
};

struct IdentityImpl : nn::Module {
  torch::Tensor forward(torch::Tensor x) { return IdentityFunction::apply(x); }
};
TORCH_MODULE(Identity);

TEST(StageBoundary, AFunctionThatReturnsItsInputWorks) {
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
    GPipe pipe = piped(nn::Sequential(Identity(), Identity()), {1, 1}, 2, mode);
    const torch::Tensor x = torch::randn({4, 3}).requires_grad_();
    const torch::Tensor y = pipe->forward(x);
    EXPECT_THAT(y, EqualsBitwise(x));
    y.sum().backward();
    EXPECT_THAT(x.grad(), EqualsBitwise(torch::ones({4, 3})));
  }
}

TEST(InPlace, AtTheHeadOfAStageWorksWithoutCheckpoint) {
  testing::manual_seed(1);
  nn::Sequential plain(nn::Linear(3, 3), relu_in_place(), nn::Linear(3, 3));
  testing::manual_seed(1);
  nn::Sequential module(nn::Linear(3, 3), relu_in_place(), nn::Linear(3, 3));
  GPipe pipe = piped(module, {1, 2}, 1, Checkpoint::kNever);
  const torch::Tensor x = torch::randn({4, 3});
  const torch::Tensor want = plain->forward(x);
  const torch::Tensor have = pipe->forward(x);
  EXPECT_THAT(have, EqualsBitwise(want));
  want.sum().backward();
  have.sum().backward();
  const auto gradients = pipe->named_parameters();
  for (const auto& p : plain->named_parameters()) {
    EXPECT_THAT(gradients[p.key()].grad(), EqualsBitwise(p.value().grad())) << p.key();
  }
}

// The sigmoid saves its output for its backward, and the next stage changes that output in place.
// The plain model would report the error, too.
TEST(InPlace, SpoilingWhatTheStageBeforeSavedIsAnError) {
  nn::Sequential module(nn::Linear(3, 3), nn::Sigmoid(), relu_in_place());
  GPipe pipe = piped(module, {2, 1}, 2, Checkpoint::kNever);
  const torch::Tensor y = pipe->forward(torch::randn({4, 3}));
  try {
    y.sum().backward();
    FAIL();
  } catch (const c10::Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("modified by an inplace operation"));
    EXPECT_THAT(e.what(), HasSubstr("stage 0"));
  }
}

TEST(InPlace, AtTheHeadOfACheckpointedStageIsAnErrorThatNamesTheLayer) {
  nn::Sequential module(nn::Linear(3, 3), relu_in_place());
  GPipe pipe = piped(module, {1, 1}, 2, Checkpoint::kAlways);
  try {
    pipe->forward(torch::randn({4, 3}));
    FAIL();
  } catch (const c10::Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("layer 1 ('1') changed an input of stage 1 in place"));
  }
}

struct ScaleInPlaceImpl : nn::Module {
  ScaleInPlaceImpl() { weight = register_parameter("weight", torch::ones({1})); }
  torch::Tensor forward(torch::Tensor x) { return x.mul_(2) * weight; }
  torch::Tensor weight;
};
TORCH_MODULE(ScaleInPlace);

TEST(InPlace, OnACheckpointedInputWithoutGradientIsAnError) {
  GPipe pipe = piped(nn::Sequential(ScaleInPlace()), {1}, 2, Checkpoint::kAlways);
  EXPECT_THROW(pipe->forward(torch::randn({4, 3})), c10::Error);
}

struct AddFirstImpl : nn::Module {
  AddFirstImpl() { weight = register_parameter("weight", torch::ones({1})); }
  Tensors forward(Tensors v) { return {v[0], v[0].add_(v[1]) * weight}; }
  torch::Tensor weight;
};
TORCH_MODULE(AddFirst);

TEST(InPlace, OnOneValueOfAListIsAnErrorToo) {
  GPipe pipe = piped(nn::Sequential(AddFirst()), {1}, 2, Checkpoint::kAlways);
  EXPECT_THROW(pipe->forward(Tensors{torch::randn({4, 3}), torch::randn({4, 3})}), c10::Error);
}

// The pipeline must not count a change of an input that nobody changes, because autograd would
// refuse a backward through the caller's own results of that input.
TEST(InPlace, AnInputThatNobodyChangesKeepsItsVersion) {
  GPipe pipe = piped(nn::Sequential(nn::Linear(3, 3)), {1}, 2, Checkpoint::kNever);
  const torch::Tensor x = torch::randn({4, 3}).requires_grad_();
  const auto version = x._version();
  const torch::Tensor mine = x * x;
  const torch::Tensor y = pipe->forward(x);
  EXPECT_EQ(x._version(), version);
  (y.sum() + mine.sum()).backward();
  EXPECT_TRUE(x.grad().defined());
}

struct TableImpl : nn::Module {
  TableImpl() {
    table = register_buffer("table", torch::ones({3}));
    weight = register_parameter("weight", torch::ones({1}));
  }
  Tensors forward(torch::Tensor x) { return {x * weight, table}; }
  torch::Tensor table, weight;
};
TORCH_MODULE(Table);

struct DoubleTableImpl : nn::Module {
  torch::Tensor forward(Tensors v) { return v[0] * v[1].mul_(2); }
};
TORCH_MODULE(DoubleTable);

// Depending on timing, the first stage would compute its next micro-batch with the old values or
// with the new ones.
TEST(InPlace, OnABufferThatTheStageBeforeHandsOnIsAnError) {
  GPipe pipe = piped(nn::Sequential(Table(), DoubleTable()), {1, 1}, 2, Checkpoint::kNever);
  try {
    pipe->forward(torch::randn({4, 3}));
    FAIL();
  } catch (const c10::Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("layer 1 ('1') changed a tensor in place"));
  }
}

// A layer that returns a list that begins with an integer tensor, beside a skip that crosses the
// same boundary.
struct NumberedStashImpl : nn::Module, skip::Skippable {
  NumberedStashImpl() : Skippable({"skip"}, {}) {}
  Tensors forward(torch::Tensor x) {
    stash("skip", x * 3);
    return {torch::arange(x.size(0), torch::kLong), x};
  }
};
TORCH_MODULE(NumberedStash);

struct NumberedPopImpl : nn::Module, skip::Skippable {
  NumberedPopImpl() : Skippable({}, {"skip"}) {}
  torch::Tensor forward(Tensors v) { return v[1] + pop("skip"); }
};
TORCH_MODULE(NumberedPop);

TEST(StageBoundary, ASkipBesideAListThatBeginsWithAnIntegerKeepsItsGradient) {
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
    nn::Sequential model(nn::Linear(3, 3), NumberedStash(), NumberedPop());
    GPipe pipe = piped(model, {2, 1}, 2, mode);
    const torch::Tensor x = torch::randn({4, 3}).requires_grad_();
    pipe->forward(x).sum().backward();
    const torch::Tensor y = x.detach().requires_grad_();
    PlainModel(model, 2).forward({y})[0].sum().backward();
    EXPECT_THAT(x.grad(), EqualsBitwise(y.grad())) << to_text(mode);
  }
}

struct RaggedImpl : nn::Module {
  Tensors forward(torch::Tensor x) {
    return x[0][0].item<float>() > 0 ? Tensors{x} : Tensors{x, x};
  }
};
TORCH_MODULE(Ragged);

TEST(StageBoundary, OutputsThatDifferInNumberAreAnError) {
  GPipe pipe = piped(nn::Sequential(Ragged()), {1}, 2, Checkpoint::kNever);
  EXPECT_THROW(pipe->forward(Tensors{torch::tensor({{1.0f}, {-1.0f}})}), c10::ValueError);
}

struct DtypeImpl : nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    seen = x.scalar_type();
    return x;
  }
  torch::ScalarType seen = torch::kFloat;
};
TORCH_MODULE(Dtype);

TEST(Autocast, ReachesTheWorkersAndTheRecompute) {
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
    testing::manual_seed(1);
    Dtype after_first;
    nn::Sequential module(nn::Linear(4, 4), after_first, nn::Linear(4, 2));
    GPipe pipe = piped(module, {1, 2}, 2, mode);
    testing::manual_seed(1);
    nn::Sequential plain(nn::Linear(4, 4), Dtype(), nn::Linear(4, 2));
    const torch::Tensor x = torch::randn({6, 4});
    for (int step = 0; step < 2; ++step) {
      torch::Tensor want;
      torch::Tensor have;
      {
        const testing::AutocastScope autocast(at::kCPU, at::kBFloat16);
        want = PlainModel(plain, 2).forward({x})[0];
      }
      {
        const testing::AutocastScope autocast(at::kCPU, at::kBFloat16);
        have = pipe->forward(x);
      }
      EXPECT_EQ(after_first->seen, torch::kBFloat16);
      EXPECT_EQ(have.scalar_type(), torch::kBFloat16);
      EXPECT_THAT(have, EqualsBitwise(want));
      want.to(torch::kFloat).sum().backward();
      have.to(torch::kFloat).sum().backward();
      const auto mine = pipe->named_parameters();
      torch::NoGradGuard no_grad;
      for (const auto& p : plain->named_parameters()) {
        const torch::Tensor gradient = mine[p.key()].grad();
        ASSERT_TRUE(gradient.defined()) << p.key();
        // The plain model casts a parameter once for all micro-batches and so sums their gradients
        // in bfloat16, which keeps 8 bits. The pipeline casts once per cell and sums in float.
        EXPECT_TRUE(torch::allclose(p.value().grad(), gradient, /*rtol=*/2e-2, /*atol=*/2e-2))
            << p.key();
        // The next step must see the changed parameters, and no cached cast of them.
        p.value().add_(0.5);
        mine[p.key()].add_(0.5);
      }
    }
  }
}

TEST(Nested, APipelineInsideALayerIsAnError) {
  struct OuterImpl : nn::Module {
    OuterImpl() : inner(piped(nn::Sequential(nn::Linear(2, 2)), {1}, 1, Checkpoint::kNever)) {}
    torch::Tensor forward(torch::Tensor x) { return inner->forward(x); }
    GPipe inner;
  };
  nn::Sequential model;
  model->push_back(std::make_shared<OuterImpl>());
  model->push_back(nn::Linear(2, 2));
  GPipe pipe = piped(model, {1, 1}, 2, Checkpoint::kNever);
  try {
    pipe->forward(torch::randn({4, 2}));
    FAIL();
  } catch (const c10::ValueError& e) {
    EXPECT_THAT(e.what(), HasSubstr("inside a layer of a pipeline"));
  }
}

}  // namespace
}  // namespace gpipe
