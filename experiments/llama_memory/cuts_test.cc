#include "experiments/llama_memory/cuts.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <vector>

namespace gpipe::experiments {
namespace {

using ::testing::ElementsAre;

// A Llama that is so small that every cut of it can be planned.
LlamaCase small(Checkpoint checkpoint, int64_t words = 512) {
  LlamaCase llama_case{models::TransformerOptions(models::TransformerKind::kLlama)
                           .vocab_size(words)
                           .max_positions(64)
                           .num_layers(3)
                           .hidden_size(64)
                           .num_heads(4)
                           .num_kv_heads(2)
                           .intermediate_size(160)
                           .fused_attention(true)};
  llama_case.rows = 5;
  llama_case.tokens = 64;
  llama_case.devices = 3;
  llama_case.checkpoint = checkpoint;
  return llama_case;
}

TEST(EvenBalance, HasAsManyBlocksOnEachDevice) {
  EXPECT_THAT(even_balance(32, 8), ElementsAre(9, 8, 8, 8, 8, 8, 8, 10));
  EXPECT_THAT(even_balance(3, 1), ElementsAre(9));
  EXPECT_THROW(even_balance(32, 5), c10::ValueError);
  EXPECT_THROW(even_balance(2, 4), c10::ValueError);
}

// The formula counts the parameters of embedding and head, and those of a block: queries, keys and
// values, output, the MLP's three matrices, two norms.
TEST(PlanCut, HoldsWhatTheFormulaSays) {
  const LlamaCase llama_case = small(Checkpoint::kAlways);
  const int64_t block = 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 160 + 2 * 64;
  const PlannedCut cut = plan_cut(llama_case, even_balance(3, 3));
  EXPECT_EQ(cut.plan.parameters, 2 * 512 * 64 + 3 * block + 64);
  ASSERT_EQ(cut.plan.devices.size(), 3);
  EXPECT_EQ(cut.plan.devices[0].parameter_count, 512 * 64 + block);
  EXPECT_EQ(cut.plan.devices[1].parameter_count, block);
  EXPECT_EQ(cut.plan.devices[2].parameter_count, block + 64 + 512 * 64);
  for (const balance::DeviceMemory& device : cut.plan.devices) {
    constexpr int64_t kBFloat16 = 2;
    EXPECT_EQ(device.parameters, kBFloat16 * device.parameter_count);
    EXPECT_EQ(device.gradients, device.parameters);
    EXPECT_EQ(device.optimizer_state, 2 * device.parameters);
    EXPECT_GT(device.peak.bytes, 4 * device.parameters);
  }
  EXPECT_EQ(cut.plan.device_type, c10::kCUDA);
  EXPECT_GT(cut.step, 0);
  EXPECT_EQ(cut.step, predicted_step(llama_case, cut.balance));
}

TEST(PlanCut, DoesNotKeepTheWeightsOfAllPairsOfTokens) {
  const auto fullest = [](int64_t tokens, bool fused) {
    LlamaCase llama_case = small(Checkpoint::kNever, /*words=*/8);
    llama_case.model.fused_attention(fused);
    llama_case.tokens = tokens;
    return static_cast<double>(plan_cut(llama_case, even_balance(3, 3)).fullest());
  };
  // Four times as many tokens take four times the memory. Without fused attention the scores of all
  // pairs of tokens take sixteen times as much, so the sum grows by more than 12.
  EXPECT_LT(fullest(4096, true) / fullest(1024, true), 4.1);
  EXPECT_GT(fullest(4096, false) / fullest(1024, false), 12);
}

// The test plans every cut of nine layers into three parts, and compares the best one with
// exact_cut().
TEST(ExactCut, HasTheLeastFullestDeviceOfAllCuts) {
  for (const Checkpoint checkpoint : {Checkpoint::kNever, Checkpoint::kAlways}) {
    for (const int64_t words : {64, 2048}) {
      const LlamaCase llama_case = small(checkpoint, words);
      const PlannedCut exact = exact_cut(llama_case);
      EXPECT_EQ(std::accumulate(exact.balance.begin(), exact.balance.end(), int64_t{0}), 9);
      int64_t least = std::numeric_limits<int64_t>::max();
      for (int64_t first = 1; first <= 7; ++first) {
        for (int64_t second = 1; first + second <= 8; ++second) {
          least =
              std::min(least, plan_cut(llama_case, {first, second, 9 - first - second}).fullest());
        }
      }
      EXPECT_EQ(exact.fullest(), least) << to_text(checkpoint) << ", " << words << " words";
      EXPECT_LE(exact.fullest(), plan_cut(llama_case, even_balance(3, 3)).fullest());
    }
  }
}

// A better cut would have fewer layers on the fullest device. So the test moves one of that
// device's layers to each other device, and expects that no such cut is better.
TEST(ExactCut, OfSevenBillionParametersHasNoBetterOneBesideIt) {
  LlamaCase llama_case{models::llama_7b().fused_attention(true)};
  llama_case.rows = 10;  // two more micro-batches than the eight stages
  llama_case.tokens = 4096;
  llama_case.devices = 8;
  llama_case.checkpoint = Checkpoint::kNever;
  const PlannedCut exact = exact_cut(llama_case);
  EXPECT_EQ(exact.plan.parameters, 6738415616);
  EXPECT_LT(exact.fullest(), plan_cut(llama_case, even_balance(32, 8)).fullest());
  const auto fullest =
      std::max_element(exact.plan.devices.begin(), exact.plan.devices.end(),
                       [](const balance::DeviceMemory& a, const balance::DeviceMemory& b) {
                         return a.peak.bytes < b.peak.bytes;
                       }) -
      exact.plan.devices.begin();
  for (size_t other = 0; other < exact.balance.size(); ++other) {
    std::vector<int64_t> balance = exact.balance;
    --balance[static_cast<size_t>(fullest)];
    ++balance[other];
    EXPECT_GE(plan_cut(llama_case, balance).fullest(), exact.fullest()) << other;
  }
}

TEST(ExactCut, EndsWhenItIsAsked) {
  RunContext context;
  context.interrupted = [] { return true; };
  EXPECT_THROW(exact_cut(small(Checkpoint::kAlways), context), command::Interrupted);
}

TEST(ExactCut, RefusesMoreDevicesThanLayers) {
  LlamaCase llama_case = small(Checkpoint::kAlways);
  llama_case.devices = 10;
  EXPECT_THROW(exact_cut(llama_case), c10::ValueError);
}

}  // namespace
}  // namespace gpipe::experiments
