#include "models/amoebanetd_parts.h"

#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpipe::models::internal {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> names(const torch::nn::Module& module) {
  std::vector<std::string> result;
  for (const auto& child : module.named_children()) result.push_back(child.key());
  return result;
}

TEST(AmoebaNetDPartsTest, EveryOperationKeepsTheChannelsAndDividesTheSides) {
  const at::Tensor input = at::ones({1, 8, 12, 12});
  for (const Op op : {Op::kAvgPool3x3, Op::kMaxPool3x3, Op::kMaxPool2x2, Op::kConv1x1, Op::kConv3x3,
                      Op::kConv1x7}) {
    SCOPED_TRACE(static_cast<int>(op));
    torch::nn::Sequential halving;
    push_op(*halving, op, 8, 2);
    EXPECT_THAT(halving->forward(input).sizes().vec(), ElementsAre(1, 8, 6, 6));
    EXPECT_EQ(is_pooling(op), halving->parameters().empty());
  }
  torch::nn::Sequential nothing;
  push_op(*nothing, Op::kNone, 8, 1);
  EXPECT_TRUE(nothing->is_empty());
  EXPECT_FALSE(is_pooling(Op::kNone));
}

TEST(AmoebaNetDPartsTest, ReducesWithTheNamesItIsGiven) {
  const FactorizedReduce reduce(4, 6, "half_",
                                [](const at::Tensor& x) { return x.slice(2, 1).slice(3, 1); });
  EXPECT_THAT(names(*reduce), ElementsAre("half_1", "half_2", "bn"));
  FactorizedReduce module = reduce;
  EXPECT_THAT(module->forward(at::ones({2, 4, 8, 8})).sizes().vec(), ElementsAre(2, 6, 4, 4));
}

TEST(AmoebaNetDPartsTest, ClassifiesOneOfTwoTensors) {
  Classifier first(3, 5, "fc", 0);
  EXPECT_THAT(names(*first), ElementsAre("pool", "fc"));
  const at::Tensor cell = at::ones({2, 3, 7, 7});
  EXPECT_THAT(first->forward({cell, {}}).sizes().vec(), ElementsAre(2, 5));
  Classifier second(3, 5, "fc", 1);
  EXPECT_THAT(second->forward({{}, cell}).sizes().vec(), ElementsAre(2, 5));
  EXPECT_THROW(first->forward({cell}), c10::ValueError);
}

TEST(AmoebaNetDPartsTest, CellsGrowByReductions) {
  CellWidths widths(8);
  const CellOptions first = widths.next(true, 3);
  EXPECT_THAT((std::vector{first.prev_prev, first.prev, first.channels}), ElementsAre(8, 8, 16));
  EXPECT_FALSE(first.after_reduction);
  const CellOptions second = widths.next(false, 4);
  EXPECT_THAT((std::vector{second.prev_prev, second.prev, second.channels}),
              ElementsAre(8, 48, 16));
  EXPECT_TRUE(second.after_reduction);
  EXPECT_EQ(widths.output(), 64);
}

TEST(AmoebaNetDPartsTest, RefusesWhatMakesNoNetwork) {
  EXPECT_NO_THROW(check_widths(8, 1));
  EXPECT_THROW(check_widths(7, 1), c10::ValueError);
  EXPECT_THROW(check_widths((int64_t{1} << 20) + 1, 1), c10::ValueError);
  EXPECT_THROW(check_widths(8, 0), c10::ValueError);
  EXPECT_THROW(check_widths(8, (int64_t{1} << 24) + 1), c10::ValueError);
}

}  // namespace
}  // namespace gpipe::models::internal
