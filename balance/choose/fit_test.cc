#include "balance/choose/fit.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mean.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/schedule/named_schedule.h"
#include "gpipe/testing/seed.h"
#include "meta/meta_scope.h"
#include "models/unet.h"

namespace gpipe::balance {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;
namespace nn = torch::nn;

constexpr int64_t kMiB = 1 << 20;

at::TensorOptions on_meta() { return at::TensorOptions().device(at::kMeta).dtype(at::kFloat); }

at::Tensor squares(const Tensors& outputs, const Tensors&) { return outputs.at(0).square().mean(); }

// Linear layers of 1 MiB, each with an activation function.
Training linears(int64_t count, int64_t rows = 64) {
  Training training;
  training.make = [count] {
    nn::Sequential model;
    for (int64_t k = 0; k < count; ++k) {
      model->push_back(nn::Linear(nn::LinearOptions(512, 512).bias(false)));
      model->push_back(nn::Tanh());
    }
    return model;
  };
  training.inputs = {at::empty({rows, 512}, on_meta())};
  training.loss = &squares;
  return training;
}

int64_t layers_of(const Fit& fit) {
  return std::accumulate(fit.balance.begin(), fit.balance.end(), int64_t{0});
}

// Plans the fit's memory again.
MemoryPlan plan_of(const Training& training, const Fit& fit, int64_t capacity) {
  const nn::Sequential model = [&] {
    const MetaScope scope;
    return training.make();
  }();
  return memory_plan(model, training.inputs, training.targets, training.loss,
                     MemoryPlanOptions(fit.balance)
                         .chunks(fit.chunks)
                         .checkpoint(fit.checkpoint)
                         .capacity(capacity));
}

// With a single row a batch norm would have no statistics and would throw. So fit() tries
// micro-batches of one row only if `chunks` asks for them.
TEST(Fit, ABatchNormGetsMoreThanOneRow) {
  Training training = linears(0, 8);
  training.make = [] {
    return nn::Sequential(nn::Linear(512, 512), nn::BatchNorm1d(512), nn::Linear(512, 512));
  };
  // There is too little memory for any plan, so fit() also tries the smallest micro-batches that a
  // batch norm allows: `chunks` stays below 8.
  const Fit found = fit(training, {kMiB, kMiB});
  EXPECT_FALSE(found.fits);
  EXPECT_LT(found.chunks, 8);
  const Fit easy = fit(training, {1000 * kMiB, 1000 * kMiB});
  EXPECT_TRUE(easy.fits);
  EXPECT_LT(easy.chunks, 8);
  EXPECT_THROW(fit(training, {1000 * kMiB, 1000 * kMiB}, FitOptions().chunks({8})), c10::Error)
      << "chunks that the caller asked for are not replaced by fewer: fit() throws";
}

TEST(Fit, NeedsNoCheckpointsWhereThereIsRoom) {
  const Fit found = fit(linears(8), {1000 * kMiB, 1000 * kMiB});
  EXPECT_TRUE(found.fits);
  EXPECT_EQ(found.limit, "");
  EXPECT_EQ(found.checkpoint, Checkpoint::kNever);
  EXPECT_THAT(found.balance, SizeIs(2));
  EXPECT_EQ(layers_of(found), 16);
  EXPECT_GT(found.step, 0);
  EXPECT_EQ(found.plans, 1);
  EXPECT_THAT(found.room, Each(1000 * kMiB));
}

// A plan of all micro-batches must confirm each answer. The rooms are so small that activations
// matter: for 1024 rows a linear layer and its activation function have outputs of 4 MiB.
TEST(Fit, ChecksTheAnswerWithAllMicroBatches) {
  const Training training = linears(16, 1024);
  const auto options = FitOptions().chunks({1, 2, 4, 8, 16, 32});
  const Fit all = fit(training, {1000 * kMiB, 1000 * kMiB}, options);
  for (const int64_t room : {60 * kMiB, 45 * kMiB, 36 * kMiB}) {
    const Fit found = fit(training, {room, room}, options);
    ASSERT_TRUE(found.fits) << room << " " << found.limit;
    EXPECT_GE(found.step, all.step);
    const MemoryPlan again = plan_of(training, found, room);
    for (size_t d = 0; d < 2; ++d) {
      EXPECT_GE(again.devices[d].reserved, 0) << room;
      EXPECT_LE(again.devices[d].reserved, room);
      EXPECT_EQ(again.devices[d].reserved, found.plan.devices[d].reserved);
      EXPECT_EQ(again.devices[d].peak.bytes, found.plan.devices[d].peak.bytes);
    }
  }
}

// With 8 chunks under fill-drain all activations are kept at the same time. The devices have room
// only if some of them are recomputed.
TEST(Fit, FindsThatOnlyCheckpointsFit) {
  const Training training = linears(32, 4096);
  const auto chunks = FitOptions().chunks({8}).schedule(Schedule::gpipe);
  const Fit checkpointed = fit(training, {400 * kMiB, 400 * kMiB},
                               FitOptions(chunks).checkpoints({Checkpoint::kAlways}));
  ASSERT_TRUE(checkpointed.fits);
  const int64_t enough =
      std::max(checkpointed.plan.devices[0].reserved, checkpointed.plan.devices[1].reserved) +
      2 * kMiB;
  const Fit found = fit(training, {enough, enough}, chunks);
  ASSERT_TRUE(found.fits) << found.limit;
  EXPECT_NE(found.checkpoint, Checkpoint::kNever);
  const Fit never =
      fit(training, {enough, enough}, FitOptions(chunks).checkpoints({Checkpoint::kNever}));
  EXPECT_FALSE(never.fits);
  EXPECT_THAT(never.limit, HasSubstr("too little"));
}

TEST(Fit, SaysWhichDeviceIsOverByHowMuch) {
  const Fit found = fit(linears(16), {17 * kMiB, 17 * kMiB});
  EXPECT_FALSE(found.fits);
  EXPECT_THAT(found.limit, AllOf(HasSubstr("device "), HasSubstr(" MiB but has room for 17.0, "),
                                 HasSubstr("too little: parameters ")));
  EXPECT_EQ(layers_of(found), 32);
  EXPECT_GT(std::max(found.needed[0], found.needed[1]), 17 * kMiB);
}

// Linear layers of different widths, each of some MiB or of few bytes.
Training random_linears(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> widths;
  const size_t layers = 3 + random() % 3;
  for (size_t k = 0; k <= layers; ++k) widths.push_back(int64_t{128} << random() % 6);
  Training training;
  training.make = [widths] {
    nn::Sequential model;
    for (size_t k = 0; k + 1 < widths.size(); ++k) {
      model->push_back(nn::Linear(nn::LinearOptions(widths[k], widths[k + 1]).bias(false)));
      if (k % 2 == 0) model->push_back(nn::Tanh());
    }
    return model;
  };
  training.inputs = {at::empty({int64_t{64} << random() % 6, widths.front()}, on_meta())};
  training.loss = &squares;
  return training;
}

// Tries all cuts into two partitions, numbers of micro-batches and modes, and returns the first
// that fits on devices of `bytes` bytes; empty if none does.
std::string what_fits(const Training& training, const std::vector<int64_t>& chunks, int64_t bytes) {
  const nn::Sequential model = [&] {
    const MetaScope scope;
    return training.make();
  }();
  const auto layers = static_cast<int64_t>(model->size());
  for (int64_t first = 1; first < layers; ++first) {
    for (const int64_t count : chunks) {
      for (const Checkpoint mode :
           {Checkpoint::kNever, Checkpoint::kExceptLast, Checkpoint::kAlways}) {
        const MemoryPlan plan =
            memory_plan(model, training.inputs, training.targets, training.loss,
                        MemoryPlanOptions(std::vector<int64_t>{first, layers - first})
                            .chunks(count)
                            .checkpoint(mode)
                            .capacity(bytes));
        if (plan.devices[0].reserved < 0 || plan.devices[1].reserved < 0) continue;
        return std::to_string(first) + " layers, " + std::to_string(count) + " chunks, " +
               to_text(mode);
      }
    }
  }
  return "";
}

// If nothing fits, the bytes that fit() names are at most a tenth more than what would be enough.
TEST(Fit, SaysLittleMoreThanTheLeastThatIsNeeded) {
  const std::vector<int64_t> chunks = {1, 4, 16};
  for (uint64_t seed = testing::test_seed(); seed < testing::test_seed() + 12; ++seed) {
    const Training training = random_linears(seed);
    const Fit found = fit(training, {kMiB / 4, kMiB / 4}, FitOptions().chunks(chunks));
    ASSERT_FALSE(found.fits);
    SCOPED_TRACE(::testing::PrintToString(found.balance) + ", " + std::to_string(found.chunks) +
                 " chunks, " + to_text(found.checkpoint) + ": " + found.limit);
    const int64_t needed = *std::max_element(found.needed.begin(), found.needed.end());
    EXPECT_EQ(what_fits(training, chunks, needed * 10 / 11), "") << seed;
    EXPECT_NE(what_fits(training, chunks, needed), "") << seed;
  }
}

TEST(Fit, SaysThatParametersAloneAreTooMuch) {
  const Fit found = fit(linears(16), {10 * kMiB, 10 * kMiB});
  EXPECT_FALSE(found.fits);
  EXPECT_THAT(found.limit, HasSubstr("parameters, gradients, optimizer state and buffers take "
                                     "32.0 MiB, all devices together have room for 20.0; device"));
}

TEST(Fit, CountsTheOptimizersState) {
  const auto adam = [](std::vector<at::Tensor> parameters) {
    return std::unique_ptr<torch::optim::Optimizer>(
        std::make_unique<torch::optim::Adam>(std::move(parameters)));
  };
  EXPECT_TRUE(fit(linears(16), {40 * kMiB, 40 * kMiB}).fits);
  EXPECT_FALSE(fit(linears(16), {30 * kMiB, 30 * kMiB}, FitOptions().optimizer(adam)).fits);
}

TEST(Fit, GivesALargerDeviceMore) {
  const Fit found = fit(linears(16), {9 * kMiB, 90 * kMiB});
  ASSERT_TRUE(found.fits) << found.limit;
  EXPECT_LT(found.balance[0], found.balance[1] / 2);
  const Fit turned = fit(linears(16), {90 * kMiB, 9 * kMiB});
  ASSERT_TRUE(turned.fits) << turned.limit;
  EXPECT_GT(turned.balance[0], 2 * turned.balance[1]);
}

TEST(Fit, LeavesTheMarginFree) {
  const Fit found = fit(linears(16), {60 * kMiB, 60 * kMiB}, FitOptions().margin(20 * kMiB));
  ASSERT_TRUE(found.fits);
  EXPECT_THAT(found.room, Each(40 * kMiB));
  for (const DeviceMemory& device : found.plan.devices) EXPECT_LE(device.reserved, 40 * kMiB);
}

TEST(Fit, CutsAUNet) {
  Training training;
  training.make = [] {
    return models::unet(models::UNetOptions().depth(3).num_convs(2).base_channels(16));
  };
  training.inputs = {at::empty({8, 3, 64, 64}, on_meta())};
  training.loss = &squares;
  const Fit roomy = fit(training, {400 * kMiB, 400 * kMiB, 400 * kMiB});
  ASSERT_TRUE(roomy.fits);
  const Fit tight = fit(training, {24 * kMiB, 24 * kMiB, 24 * kMiB});
  ASSERT_TRUE(tight.fits) << tight.limit;
  EXPECT_GE(tight.step, roomy.step);
  for (const DeviceMemory& device : tight.plan.devices) EXPECT_LE(device.reserved, 24 * kMiB);
}

struct Stop {};

TEST(Fit, EndsWhenProgressThrows) {
  int calls = 0;
  const auto progress = [&](const std::string& note) {
    if (++calls == 6) throw Stop();
    EXPECT_NE(note, "");
  };
  EXPECT_THROW(fit(linears(8), {1000 * kMiB, 1000 * kMiB}, FitOptions().progress(progress)), Stop);
}

TEST(Fit, RefusesWhatCannotBe) {
  const auto refuses = [](std::vector<int64_t> bytes, FitOptions options, const char* text) {
    EXPECT_THAT([&] { fit(linears(2), bytes, options); },
                ThrowsMessage<c10::ValueError>(HasSubstr(text)));
  };
  refuses({}, {}, "no devices were given");
  refuses({kMiB, 0}, {}, "device 1 has 0 bytes");
  refuses({-5}, {}, "device 0 has -5 bytes");
  refuses({kMiB}, FitOptions().margin(-1), "margin must be at least 0 bytes, got -1");
  refuses({kMiB}, FitOptions().margin(kMiB), "the margin of 1048576 takes");
  refuses({kMiB}, FitOptions().chunks({0}), "chunks has 0, expected 1 to the 64 rows");
  refuses({kMiB}, FitOptions().chunks({65}), "chunks has 65");
  refuses({kMiB, kMiB, kMiB, kMiB, kMiB}, {}, "5 devices were given, but the model has 4 layers");
  refuses({kMiB, kMiB}, FitOptions().schedule(schedule_by_name("zb-v")),
          "the schedule has 2 stages on 1 device, and fit() plans one stage on each device; give");
  refuses(std::vector<int64_t>(4, kMiB), FitOptions().schedule(schedule_by_name("interleaved")),
          "the schedule has 4 stages on 2 devices");
  Training training = linears(2);
  training.make = nullptr;
  EXPECT_THAT([&] { fit(training, {kMiB}); },
              ThrowsMessage<c10::ValueError>(HasSubstr("Training::make is empty")));
  training = linears(2);
  training.inputs = {};
  EXPECT_THAT([&] { fit(training, {kMiB}); },
              ThrowsMessage<c10::ValueError>(HasSubstr("there is no defined tensor")));
  training.inputs = {at::empty({0, 8}, at::kMeta)};
  EXPECT_THAT([&] { fit(training, {kMiB}); },
              ThrowsMessage<c10::ValueError>(HasSubstr("the mini-batch has no rows")));
}

TEST(Largest, RefusesSeveralStagesOnADevice) {
  EXPECT_THAT(
      [] {
        largest([](int64_t member) { return linears(member); }, 5, {kMiB, kMiB},
                FitOptions().schedule(schedule_by_name("sequential")));
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("the schedule has 2 stages on 1 device")));
}

TEST(Largest, IsTheLastThatFits) {
  const auto family = [](int64_t member) { return linears(member); };
  const std::vector<int64_t> devices = {40 * kMiB, 40 * kMiB};
  const Largest found = largest(family, 1000, devices);
  EXPECT_GT(found.member, 15);
  EXPECT_LT(found.member, 40);
  EXPECT_TRUE(found.fit.fits);
  EXPECT_EQ(found.next, found.member + 1);
  EXPECT_FALSE(found.next_fit.fits);
  EXPECT_THAT(found.next_fit.limit, HasSubstr("too little"));
  EXPECT_TRUE(fit(linears(found.member), devices).fits);
  const Fit next = fit(linears(found.next), devices);
  EXPECT_FALSE(next.fits) << next.chunks << " " << to_text(next.checkpoint) << " "
                          << found.next_fit.limit;
}

// A candidate that is far from fitting is planned once. The plan says how much memory is missing,
// and the prediction that the plan corrects is still far from fitting.
TEST(Largest, WhatIsFarFromFittingIsPlannedOnceInEachThriftyWay) {
  for (uint64_t seed = testing::test_seed(); seed < testing::test_seed() + 6; ++seed) {
    const Training training = random_linears(seed);
    const Largest found = largest([&](int64_t) { return training; }, 1, {kMiB / 4, kMiB / 4});
    EXPECT_EQ(found.member, 0);
    EXPECT_THAT(found.next_fit.limit, HasSubstr("too little"));
    // at most: the smallest micro-batches in two checkpoint modes, and a single micro-batch
    EXPECT_LE(found.next_fit.plans, 3) << seed;
  }
}

TEST(Largest, MayBeTheLastThereIsOrNone) {
  const auto family = [](int64_t member) { return linears(member); };
  const Largest all = largest(family, 5, {400 * kMiB, 400 * kMiB});
  EXPECT_EQ(all.member, 5);
  EXPECT_EQ(all.next, 0);
  const Largest none = largest(family, 5, {kMiB});
  EXPECT_EQ(none.member, 0);
  EXPECT_EQ(none.next, 1);
  EXPECT_NE(none.next_fit.limit, "");
  EXPECT_THAT([&] { largest(family, 0, {kMiB}); },
              ThrowsMessage<c10::ValueError>(HasSubstr("most must be at least 1")));
}

// A member with fewer layers than devices was taken for one that fits, and then refused.
TEST(Largest, MayLeaveDevices) {
  const auto family = [](int64_t member) { return linears(member); };
  const Largest two = largest(family, 2, std::vector<int64_t>(6, 40 * kMiB));
  EXPECT_EQ(two.member, 2);
  EXPECT_EQ(two.next, 0);
  EXPECT_EQ(two.fit.balance, (std::vector<int64_t>{1, 1, 1, 1}));
  EXPECT_EQ(two.fit.room.size(), 4);
  // A layer of the first member alone is too large.
  const Largest none = largest(family, 2, std::vector<int64_t>(6, kMiB));
  EXPECT_EQ(none.member, 0);
  EXPECT_EQ(none.next, 1);
  EXPECT_THAT(none.next_fit.limit, HasSubstr("too little"));
}

}  // namespace
}  // namespace gpipe::balance
