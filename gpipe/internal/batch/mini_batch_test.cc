#include "gpipe/internal/batch/mini_batch.h"

#include <ATen/ops/_nested_tensor_from_tensor_list.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "gpipe/testing/bitwise.h"

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using testing::EqualsBitwise;
using ::testing::HasSubstr;

std::vector<Packet> packets_of(const std::vector<std::vector<at::Tensor>>& micro_batches) {
  std::vector<Packet> packets(micro_batches.size());
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    for (const at::Tensor& tensor : micro_batches[i]) {
      packets[i].items.emplace_back();
      packets[i].items.back().tensor = tensor;
    }
  }
  return packets;
}

template <typename Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(MiniBatch, IsCutLikeChunk) {
  for (int64_t rows = 1; rows < 20; ++rows) {
    for (int64_t chunks = 1; chunks < 22; ++chunks) {
      std::vector<int64_t> want;
      for (const at::Tensor& piece : torch::zeros({rows}).chunk(chunks)) {
        want.push_back(piece.size(0));
      }
      const MiniBatch mini_batch(rows, chunks);
      EXPECT_EQ(mini_batch.sizes(), want) << rows << " rows, " << chunks << " chunks";
      EXPECT_EQ(mini_batch.rows(), rows);
    }
  }
  EXPECT_THAT(MiniBatch(0, 3).sizes(), ElementsAre(0));
  EXPECT_THAT(MiniBatch(2, std::numeric_limits<int64_t>::max()).sizes(), ElementsAre(1, 1));
}

TEST(MiniBatch, PiecesLieInTheTensorAndAreNotViewsOfIt) {
  const at::Tensor whole = torch::randn({4, 5}).t().requires_grad_();
  const MiniBatch mini_batch(5, 2);
  const std::vector<at::Tensor> last = mini_batch.slice({whole, at::Tensor()}, 1);
  ASSERT_EQ(last.size(), 2u);
  EXPECT_THAT(last[0], EqualsBitwise(whole.detach().narrow(0, 3, 2)));
  EXPECT_EQ(last[0].storage().unsafeGetStorageImpl(), whole.storage().unsafeGetStorageImpl());
  EXPECT_FALSE(last[0].is_view());
  EXPECT_FALSE(last[0].requires_grad());
  EXPECT_FALSE(last[1].defined());
}

TEST(MiniBatch, NestedTensorsAreCutBetweenTheirSamples) {
  const std::vector<at::Tensor> samples = {torch::randn({2, 3}), torch::randn({4, 3}),
                                           torch::randn({1, 3})};
  const at::Tensor whole = at::_nested_tensor_from_tensor_list(samples);
  const MiniBatch mini_batch(3, 2);
  EXPECT_THAT(mini_batch.slice(whole, 0).unbind(),
              EqualsBitwise(std::vector<at::Tensor>{samples[0], samples[1]}));
  EXPECT_THAT(mini_batch.slice(whole, 1).unbind(),
              EqualsBitwise(std::vector<at::Tensor>{samples[2]}));
}

TEST(MiniBatch, OnlyStridedTensorsCanBeCut) {
  const at::Tensor sparse = torch::eye(4).to_sparse();
  EXPECT_THAT(refusal([&] { (void)MiniBatch(4, 2).slice(sparse, 0); }), HasSubstr("to_dense()"));
  EXPECT_TRUE(MiniBatch(4, 1).slice(sparse, 0).is_sparse());
}

TEST(MiniBatch, OneGradientAloneStaysAsItIs) {
  const at::Tensor gradient = torch::randn({4, 2});
  const Packet alone = MiniBatch(4, 1).slice_gradients({gradient, at::Tensor()}, 0);
  EXPECT_TRUE(alone.items[0].tensor.is_same(gradient));
  EXPECT_FALSE(alone.items[1].tensor.defined());
  const Packet second = MiniBatch(4, 3).slice_gradients({gradient, at::Tensor()}, 1);
  EXPECT_THAT(second.items[0].tensor, EqualsBitwise(gradient.narrow(0, 2, 2)));
  EXPECT_FALSE(second.items[1].tensor.defined());
}

// Users' code may write into the gradient of one micro-batch, and the others must not change.
TEST(MiniBatch, GradientsOfMicroBatchesOfOneRowShareNoMemory) {
  const at::Tensor gradient = torch::randn({3}).expand({2, 3});
  const MiniBatch mini_batch(2, 2);
  const at::Tensor first = mini_batch.slice_gradients({gradient}, 0).items[0].tensor;
  const at::Tensor second = mini_batch.slice_gradients({gradient}, 1).items[0].tensor;
  EXPECT_THAT(first, EqualsBitwise(gradient.narrow(0, 0, 1)));
  EXPECT_FALSE(first.is_alias_of(second));
  EXPECT_FALSE(first.is_alias_of(gradient));
}

TEST(MiniBatch, OutputsAreJoinedAndShareNoMemory) {
  const MiniBatch mini_batch(3, 2);
  const at::Tensor a = torch::randn({2, 4});
  const at::Tensor b = torch::randn({1, 4});
  const std::vector<at::Tensor> joined =
      mini_batch.join(packets_of({{a, a, at::Tensor(), a}, {b, b, at::Tensor(), b.clone()}}));
  ASSERT_EQ(joined.size(), 4u);
  EXPECT_THAT(joined[0], EqualsBitwise(torch::cat({a, b}, 0)));
  EXPECT_TRUE(joined[1].is_same(joined[0]));
  EXPECT_FALSE(joined[2].defined());
  EXPECT_FALSE(joined[3].is_same(joined[0]));

  const std::vector<at::Tensor> alone =
      MiniBatch(2, 1).join(packets_of({{a, a.narrow(1, 0, 2), at::Tensor()}}));
  EXPECT_TRUE(alone[0].is_same(a));
  EXPECT_NE(alone[1].storage().unsafeGetStorageImpl(), a.storage().unsafeGetStorageImpl());
  EXPECT_THAT(alone[1], EqualsBitwise(a.narrow(1, 0, 2)));
  EXPECT_FALSE(alone[2].defined());
}

TEST(MiniBatch, RefusesOutputsThatCannotBeJoined) {
  const MiniBatch mini_batch(3, 2);
  const at::Tensor a = torch::randn({2, 4});
  const at::Tensor b = torch::randn({1, 4});
  auto text = [&](const std::vector<std::vector<at::Tensor>>& outputs) {
    return refusal([&] { (void)mini_batch.join(packets_of(outputs)); });
  };
  EXPECT_THAT(text({{a}, {b, b}}), HasSubstr("the same number for every micro-batch"));
  EXPECT_THAT(text({{a}, {at::Tensor()}}), HasSubstr("undefined for others"));
  EXPECT_THAT(text({{a}, {a}}), HasSubstr("micro-batch 1, which has 1 rows"));
  EXPECT_THAT(text({{a.sum()}, {b.sum()}}), HasSubstr("scalar in each of 2 micro-batches"));
  EXPECT_THAT(refusal([&] { mini_batch.check_rows(a.sum(), 0, 1); }), HasSubstr("a scalar"));
  EXPECT_EQ(refusal([&] { mini_batch.check_rows(b, 0, 1); }), "");
  EXPECT_EQ(refusal([&] { MiniBatch(3, 1).check_rows(a.sum(), 0, 0); }), "");
}

TEST(MiniBatch, GradientsThatDidNotArriveAreZeroBesideOthers) {
  const MiniBatch mini_batch(5, 3);
  const at::Tensor gradient = torch::randn({2, 4}, at::kDouble);
  const std::vector<Packet> some = packets_of({{at::Tensor(), at::Tensor()}, {gradient}, {}});
  EXPECT_THAT(
      mini_batch.join_gradients(some, 0),
      EqualsBitwise(torch::cat(
          {torch::zeros({2, 4}, at::kDouble), gradient, torch::zeros({1, 4}, at::kDouble)}, 0)));
  EXPECT_FALSE(mini_batch.join_gradients(some, 1).defined());
  EXPECT_TRUE(MiniBatch(2, 1).join_gradients(packets_of({{gradient}}), 0).is_same(gradient));
}

}  // namespace
}  // namespace gpipe::internal
