#include "gpipe/internal/offload/stage_offloads.h"

#include <ATen/SparseTensorImpl.h>
#include <ATen/ops/_lazy_clone.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/internal/tensors/transfer.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/fake_accelerator/allocator.h"
#include "gpipe/testing/fake_accelerator/backend.h"

namespace gpipe::internal {
namespace {

using testing::EqualsBitwise;
using ::testing::HasSubstr;
using testing::on_host;
using testing::fake::allocator;
using testing::fake::runtime;

constexpr int64_t kSide = 128;  // a square of floats has StageOffloads::kLeastBytes
constexpr size_t kBytes = kSide * kSide * sizeof(float);
static_assert(kBytes == StageOffloads::kLeastBytes);

at::Tensor square(int64_t seed) {
  return torch::arange(kSide * kSide, torch::kFloat)
      .add(seed)
      .sin()
      .view({kSide, kSide})
      .to(testing::device(0));
}

std::string complaint_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

std::string complaint_of(const at::Tensor& tensor) {
  return complaint_of([&] { (void)on_host(tensor); });
}

class StageOffloadsTest : public testing::DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    weight_ = square(1).requires_grad_();
    // In a stage's first cell everything stays.
    offloads_.emplace(testing::device(0));
    begin();
    forward(0, square(2));
    offloads_->end_run();
    begin();
  }

  void begin() {
    offloads_->begin_run(0, Schedule::from_text("stages 1\nmicro_batches 2\nworker 0: "
                                                "F0.0 F0.1 O0.0 O0.1 L0.1 B0.1 L0.0 B0.0\n"));
  }

  at::Tensor forward(int64_t micro_batch, const at::Tensor& input) {
    at::Tensor output;
    {
      const auto noted = offloads_->note(micro_batch);
      const at::Tensor middle = input.mm(weight_).sigmoid();
      // Two nodes keep `middle`, and so does a third one by a view.
      output = middle.mul(middle.t()).mm(weight_) + middle.tanh();
    }
    offloads_->depart({ActionKind::kForward, 0, static_cast<int32_t>(micro_batch)},
                      {output, weight_}, {});
    return output;
  }

  at::Tensor weight_;
  std::optional<StageOffloads> offloads_;
};

TEST_F(StageOffloadsTest, MemoryGoesAndComesBackWithItsBits) {
  const at::Tensor input = square(2);
  const at::Tensor plain = [&] {
    const at::Tensor middle = input.mm(weight_).sigmoid();
    return middle.mul(middle.t()).mm(weight_) + middle.tanh();
  }();
  plain.sum().backward();
  const at::Tensor want = on_host(weight_.grad());
  weight_.mutable_grad() = at::Tensor();

  const int64_t copies = runtime().counters().copies;
  const at::Tensor output = forward(0, input);
  // The sigmoid, the product and the tanh: each is copied once, whatever number of nodes has it.
  EXPECT_EQ(runtime().counters().copies - copies, 3);
  const size_t all = allocator().in_use(0);
  offloads_->offload(0);
  EXPECT_EQ(allocator().in_use(0), all - 3 * kBytes);
  offloads_->reload(0);
  EXPECT_EQ(allocator().in_use(0), all);
  offloads_->arrive(0);
  output.sum().backward({}, /*retain_graph=*/true);
  EXPECT_THAT(on_host(weight_.grad()), EqualsBitwise(want));
  weight_.mutable_grad() = at::Tensor();
  output.sum().backward();
  EXPECT_THAT(on_host(weight_.grad()), EqualsBitwise(want));
}

TEST_F(StageOffloadsTest, ItsOwnTensorsOnly) {
  const at::Tensor input = square(2);
  at::Tensor kept;  // made in an earlier call, and only looked at in this one
  {
    const auto noted = offloads_->note(0);
    kept = input.exp();
    const at::Tensor view = weight_.t() + kept[0];
  }
  offloads_->depart({ActionKind::kForward, 0, 0}, {kept}, {});
  offloads_->offload(0);
  at::Tensor output;
  {
    const auto noted = offloads_->note(1);
    output = (kept.t() * weight_.view({-1}).view({kSide, kSide})).exp() + input[0];
  }
  offloads_->depart({ActionKind::kForward, 0, 1}, {output}, {});
  offloads_->offload(1);
  for (const at::Tensor& tensor : {input, weight_, kept, output}) {
    EXPECT_EQ(complaint_of(tensor.detach()), "");
  }
}

TEST_F(StageOffloadsTest, AnAccessMeanwhileIsAnError) {
  const at::Tensor input = square(2);
  at::Tensor member;  // such as a layer may keep
  at::Tensor output;
  {
    const auto noted = offloads_->note(0);
    member = input.mm(weight_);
    output = member.exp();
  }
  const auto version = member._version();
  offloads_->depart({ActionKind::kForward, 0, 0}, {output}, {});
  EXPECT_EQ(complaint_of(member.detach()), "");
  offloads_->offload(0);
  EXPECT_THAT(complaint_of(member.detach()), HasSubstr("this tensor's memory is on the host"));
  EXPECT_THAT(complaint_of([&] { member.detach().view({-1}).add(1); }), HasSubstr("on the host"));
  offloads_->reload(0);
  EXPECT_THAT(complaint_of(member.detach()), HasSubstr("on the host")) << "it is under way";
  offloads_->arrive(0);
  EXPECT_EQ(complaint_of(member.detach()), "");
  EXPECT_EQ(member._version(), version);
}

// A mask, say, that the first micro-batch makes for all.
TEST_F(StageOffloadsTest, WhatAnotherCellUsesComesBackAndThenStays) {
  const at::Tensor want = on_host(square(2).mm(weight_.detach()) + 1);
  enum Moment { kOnItsWay, kAway, kOnItsWayBack };
  bool own_stream = false;  // whether the layer uses it on a stream of its own
  const auto use_it = [&](at::Tensor& member) {
    const auto noted = offloads_->note(1);
    if (!own_stream) {
      member.add_(1);
      return;
    }
    const c10::Stream stage = current_stream(testing::device(0));
    const testing::OtherStreamsScope others;
    const c10::Stream own = current_stream(testing::device(0));
    follow(own, stage);
    member.add_(1);
    follow(stage, own);
  };
  const auto run = [&](std::optional<Moment> use) {
    at::Tensor member;
    {
      const auto noted = offloads_->note(0);
      member = square(2).mm(weight_.detach());
    }
    offloads_->depart({ActionKind::kForward, 0, 0}, {}, {});
    if (use != kOnItsWay) offloads_->offload(0);
    if (use == kOnItsWayBack) offloads_->reload(0);
    const bool was_away = !complaint_of(member).empty();
    if (use) use_it(member);
    offloads_->depart({ActionKind::kForward, 0, 1}, {}, {});
    if (use == kOnItsWay) offloads_->offload(0);
    if (use) {
      EXPECT_EQ(complaint_of(member), "");
    }
    if (use != kOnItsWayBack) offloads_->reload(0);
    offloads_->arrive(0);
    if (use) {
      EXPECT_THAT(on_host(member), EqualsBitwise(want));
    }
    offloads_->end_run();
    begin();
    return was_away;
  };
  for (const bool own : {false, true}) {
    own_stream = own;
    for (const Moment moment : {kOnItsWay, kAway, kOnItsWayBack}) {
      SCOPED_TRACE(std::to_string(moment) + (own ? ", on a stream of its own" : ""));
      EXPECT_EQ(run(moment), moment != kOnItsWay);
      EXPECT_FALSE(run(kAway)) << "it stays from the first on";
      EXPECT_FALSE(run(kAway));
      EXPECT_FALSE(run(std::nullopt)) << "that no cell uses it any more is known behind this run";
      EXPECT_TRUE(run(std::nullopt));
    }
  }
}

TEST_F(StageOffloadsTest, WhatAnotherCellUsesBeforeTheCellsLastPartStays) {
  offloads_->begin_run(0, Schedule::from_text("stages 1\nmicro_batches 2\nworker 0: "
                                              "F0.0 F0.1 I0.0 O0.0 I0.1 W0.1 L0.0 W0.0\n"));
  at::Tensor member, other;
  {
    const auto noted = offloads_->note(0);
    member = square(2).mm(weight_.detach());
    other = square(3).neg();
  }
  offloads_->depart({ActionKind::kForward, 0, 0}, {}, {});
  {
    const auto noted = offloads_->note(1);  // the cell itself does not go
    const at::Tensor used = member + 1;
  }
  offloads_->depart({ActionKind::kForward, 0, 1}, {}, {});
  offloads_->arrive(0);
  offloads_->depart({ActionKind::kInputGradient, 0, 0}, {}, {});
  offloads_->offload(0);
  EXPECT_EQ(complaint_of(member), "");
  EXPECT_THAT(complaint_of(other), HasSubstr("on the host"));
}

// That a cell was given a storage before that could go says nothing of its later uses.
TEST_F(StageOffloadsTest, WhatAnotherCellUsesAgainComesBackOnceItIsLarge) {
  offloads_->begin_run(0, Schedule::from_text("stages 1\nmicro_batches 2\nworker 0: "
                                              "F0.0 F0.1 I0.0 O0.0 I0.1 W0.1 L0.0 W0.0\n"));
  at::Tensor member, other;
  {
    const auto noted = offloads_->note(0);
    member = square(2)[0] + 1;
    other = square(3).neg();
  }
  offloads_->depart({ActionKind::kForward, 0, 0}, {}, {});
  const auto use_it = [&] {
    const auto noted = offloads_->note(1);  // the cell itself does not go
    member.add_(1);
  };
  use_it();
  offloads_->depart({ActionKind::kForward, 0, 1}, {}, {});
  {
    const auto noted = offloads_->note(0);
    member.resize_({kSide, kSide}).fill_(3);
  }
  offloads_->depart({ActionKind::kInputGradient, 0, 0}, {}, {});
  offloads_->offload(0);
  ASSERT_THAT(complaint_of(member), HasSubstr("on the host"));
  use_it();
  EXPECT_EQ(complaint_of(member), "");
  EXPECT_THAT(on_host(member), EqualsBitwise(torch::full({kSide, kSide}, 4.0F)));
}

TEST_F(StageOffloadsTest, AnotherCellsUseNeedsMemory) {
  at::Tensor member;
  {
    const auto noted = offloads_->note(0);
    member = square(2).mm(weight_.detach());
  }
  offloads_->depart({ActionKind::kForward, 0, 0}, {}, {});
  const at::Tensor want = on_host(member);
  offloads_->offload(0);
  {
    const auto noted = offloads_->note(1);
    allocator().fail(0, 0);
    EXPECT_THAT(complaint_of([&] { member.add_(1); }), HasSubstr("out of memory"));
  }
  offloads_->end_run();
  EXPECT_THAT(on_host(member), EqualsBitwise(want));
}

// A change after the copy to the host has begun would be lost.
TEST_F(StageOffloadsTest, WhatChangesMeanwhileStays) {
  const at::Tensor input = square(2);
  at::Tensor changed, as_a_view, resized, uncounted;
  {
    const auto noted = offloads_->note(0);
    changed = input.exp();
    as_a_view = at::_unsafe_view(input.mm(weight_.detach()), {-1});  // counts its own changes
    resized = input.neg();
    const c10::InferenceMode inference;
    uncounted = input.cos();
  }
  offloads_->depart({ActionKind::kForward, 0, 0}, {}, {});
  runtime().synchronize_device(0);  // the copies are over
  changed.add_(1);
  as_a_view.add_(1);
  resized.resize_({2 * kSide, kSide}).fill_(3);
  {
    const c10::InferenceMode inference;
    uncounted.add_(1);
  }
  const at::Tensor want[] = {on_host(changed), on_host(as_a_view), on_host(resized),
                             on_host(uncounted)};
  offloads_->offload(0);
  offloads_->reload(0);
  offloads_->arrive(0);
  EXPECT_THAT(on_host(changed), EqualsBitwise(want[0]));
  EXPECT_THAT(on_host(as_a_view), EqualsBitwise(want[1]));
  EXPECT_THAT(on_host(resized), EqualsBitwise(want[2]));
  EXPECT_THAT(on_host(uncounted), EqualsBitwise(want[3]));
}

// The parts of a sparse tensor are tensors of their own, and the tensor itself has no storage.
TEST_F(StageOffloadsTest, PartsOfSparseResultsStay) {
  at::Tensor values;
  {
    const auto noted = offloads_->note(0);
    values = square(2).exp();
  }
  // The fake accelerator has no operators for sparse tensors.
  const at::Tensor sparse = at::detail::make_tensor<at::SparseTensorImpl>(
      c10::DispatchKeySet(c10::DispatchKey::SparsePrivateUse1), values.dtype());
  auto* const impl = static_cast<at::SparseTensorImpl*>(sparse.unsafeGetTensorImpl());
  impl->resize_(/*sparse_dim=*/1, /*dense_dim=*/1, at::IntArrayRef({kSide, kSide}));
  impl->set_indices_and_values_unsafe(
      torch::arange(kSide, torch::kLong).view({1, kSide}).to(testing::device(0)), values);
  offloads_->depart({ActionKind::kForward, 0, 0}, {sparse}, {});
  offloads_->offload(0);
  EXPECT_EQ(complaint_of(values), "");
}

TEST_F(StageOffloadsTest, WhatAnOperatorOnlyReturnsStays) {
  const at::Tensor kept = square(2);
  {
    const auto noted = offloads_->note(0);
    const at::Tensor alias = at::empty({0}, kept.options()).set_(kept.storage());
  }
  offloads_->depart({ActionKind::kForward, 0, 0}, {}, {});
  offloads_->offload(0);
  EXPECT_EQ(complaint_of(kept), "");
}

// Two storages have one memory until one of them is written.
TEST_F(StageOffloadsTest, LazyClonesStay) {
  at::Tensor made, clone;
  {
    const auto noted = offloads_->note(0);
    made = square(2).mm(weight_.detach());
    clone = at::_lazy_clone(made);
  }
  offloads_->depart({ActionKind::kForward, 0, 0}, {}, {});
  const at::Tensor want = on_host(made);
  offloads_->offload(0);
  clone.add_(1);
  EXPECT_THAT(on_host(made), EqualsBitwise(want));
  EXPECT_THAT(on_host(clone), EqualsBitwise(want + 1));
  offloads_->reload(0);
  offloads_->arrive(0);
}

// What something still holds when a run has failed is there again, wherever it was.
TEST_F(StageOffloadsTest, AFailedRunLeavesNothingAway) {
  for (const bool under_way : {false, true}) {
    at::Tensor member;
    {
      const auto noted = offloads_->note(0);
      member = square(2).mm(weight_.detach());
    }
    offloads_->depart({ActionKind::kForward, 0, 0}, {}, {});
    const at::Tensor want = on_host(member);
    offloads_->offload(0);
    if (under_way) offloads_->reload(0);
    offloads_->end_run();
    EXPECT_EQ(complaint_of(member), "");
    EXPECT_THAT(on_host(member), EqualsBitwise(want));
    begin();
  }
  EXPECT_EQ(offloads_->pinned_bytes(), 2 * 3 * kBytes);
}

// A layer may use in a later run what a cell of a failed one had made. Nothing stays for that.
TEST_F(StageOffloadsTest, WhatAFailedRunMadeIsOfNoCell) {
  offloads_->begin_run(0, Schedule::from_text("stages 1\nmicro_batches 2\nworker 0: "
                                              "F0.0 F0.1 I0.0 O0.0 I0.1 W0.1 L0.0 W0.0\n"));
  const at::Tensor input = square(2);
  at::Tensor member, made;
  {
    const auto noted = offloads_->note(0);
    member = input.exp();
  }
  offloads_->depart({ActionKind::kForward, 0, 0}, {}, {});  // it would go behind a later part
  offloads_->end_run();
  begin();
  {
    const auto noted = offloads_->note(0);
    made = member.exp();  // at the place at which the member was made
  }
  offloads_->depart({ActionKind::kForward, 0, 0}, {}, {});
  offloads_->offload(0);
  EXPECT_THAT(complaint_of(made), HasSubstr("on the host"));
}

// A custom function may keep tensors where no graph counts their changes.
struct KeepsIts : torch::autograd::Function<KeepsIts> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->saved_data["square"] = x * x;
    return x * x * x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * 3 * context->saved_data["square"].toTensor()};
  }
};

TEST_F(StageOffloadsTest, WhatACustomFunctionKeepsGoes) {
  const at::Tensor input = square(3).requires_grad_();
  KeepsIts::apply(input).sum().backward();
  const at::Tensor want = on_host(input.grad());
  input.mutable_grad() = at::Tensor();
  at::Tensor output;
  {
    const auto noted = offloads_->note(0);
    output = KeepsIts::apply(input);
  }
  offloads_->depart({ActionKind::kForward, 0, 0}, {output}, {});
  const size_t all = allocator().in_use(0);
  offloads_->offload(0);
  EXPECT_EQ(allocator().in_use(0), all - kBytes);
  offloads_->reload(0);
  offloads_->arrive(0);
  output.sum().backward();
  EXPECT_THAT(on_host(input.grad()), EqualsBitwise(want));
}

TEST_F(StageOffloadsTest, InputsThatNothingElseHoldsGo) {
  std::vector<at::Tensor> inputs = {square(3), square(4), square(5)[0]};
  const at::Tensor also_held = inputs[1];
  std::vector<const at::Tensor*> kept;
  for (const at::Tensor& input : inputs) kept.push_back(&input);
  offloads_->depart({ActionKind::kForward, 0, 0}, {}, kept);
  const size_t all = allocator().in_use(0);
  offloads_->offload(0);
  EXPECT_EQ(allocator().in_use(0), all - 2 * kBytes);
  EXPECT_EQ(complaint_of(also_held), "");
  offloads_->reload(0);
  offloads_->arrive(0);
  EXPECT_THAT(on_host(inputs[0]), EqualsBitwise(on_host(square(3))));
  EXPECT_THAT(on_host(inputs[2]), EqualsBitwise(on_host(square(5)[0])));
}

TEST_F(StageOffloadsTest, PinnedMemoryIsUsedAgain) {
  const size_t pinned = offloads_->pinned_bytes();
  EXPECT_EQ(pinned, 2 * 3 * kBytes) << "made in the first cell, for both that are away at once";
  for (int run = 0; run < 3; ++run) {
    std::vector<at::Tensor> outputs;
    for (int64_t i = 0; i < 2; ++i) outputs.push_back(forward(i, square(i)));
    for (int64_t i = 0; i < 2; ++i) offloads_->offload(i);
    for (int64_t i = 2; i-- > 0;) {
      offloads_->reload(i);
      offloads_->arrive(i);
      outputs[i].sum().backward();
    }
    offloads_->end_run();
    begin();
  }
  EXPECT_EQ(offloads_->pinned_bytes(), pinned);
}

// Blocks are shared by storages of similar sizes. So mini-batches that become longer and longer do
// not each leave their own blocks behind.
TEST_F(StageOffloadsTest, PinnedMemoryDoesNotGrowWithEachSize) {
  for (int64_t more = 0; more < 64; ++more) {
    at::Tensor made;
    {
      const auto noted = offloads_->note(0);
      made = square(2).repeat({2, 1}).slice(0, 0, kSide + 1 + more).exp();
    }
    offloads_->depart({ActionKind::kForward, 0, 0}, {}, {});
    offloads_->offload(0);
    offloads_->reload(0);
    offloads_->arrive(0);
    offloads_->end_run();
    begin();
  }
  EXPECT_LE(offloads_->pinned_bytes(), 2 * 3 * kBytes + 4 * kBytes);
}

// Wherever a run ends, nothing stays, and no memory is used too early (the fake accelerator looks).
TEST_F(StageOffloadsTest, ARunMayEndAnywhere) {
  for (int end = 0; end < 5; ++end) {
    SCOPED_TRACE(end);
    const size_t before = allocator().in_use(0);
    {
      const at::Tensor output = forward(0, square(2));
      if (end > 0) offloads_->offload(0);
      if (end == 2) {
        allocator().fail(0, 1);
        EXPECT_THROW(offloads_->reload(0), c10::OutOfMemoryError);
        allocator().fail(0, -1);
      }
      if (end == 3) offloads_->reload(0);
      if (end == 4) allocator().fail(0, 1);
      offloads_->end_run();
      allocator().fail(0, -1);
    }
    EXPECT_EQ(allocator().in_use(0), before);
    begin();
  }
  EXPECT_EQ(offloads_->pinned_bytes(), 2 * 3 * kBytes);
}

}  // namespace
}  // namespace gpipe::internal
