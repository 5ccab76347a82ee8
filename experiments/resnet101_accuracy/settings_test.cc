#include "experiments/resnet101_accuracy/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpipe::experiments {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(FindExperiments, ByEitherName) {
  EXPECT_EQ(find_experiments("").size(), 6u);
  const std::vector<Experiment> found = find_experiments("gpipe-256,naive-128");
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].name, "pipeline-256");
  EXPECT_EQ(found[1].name, "naive-128");
  EXPECT_THAT([] { find_experiments("pipeline-2"); },
              ThrowsMessage<std::invalid_argument>(
                  AllOf(HasSubstr("'pipeline-2'"), HasSubstr("pipeline-4k"))));
}

TEST(ParseScale, Names) {
  EXPECT_EQ(parse_scale("smoke"), Scale::kSmoke);
  EXPECT_EQ(parse_scale("full"), Scale::kFull);
  EXPECT_THROW(parse_scale("tiny"), std::invalid_argument);
}

TEST(ParseBalance, Lists) {
  EXPECT_THAT(parse_balance("140,230"), ElementsAre(140, 230));
  EXPECT_THAT(parse_balance("[1, 2, 3]"), ElementsAre(1, 2, 3));
  EXPECT_TRUE(parse_balance("").empty());
  for (const std::string text : {"1,,2", "1,x", "0,3", "-1,4", "1.5,2"}) {
    EXPECT_THROW(parse_balance(text), std::invalid_argument) << text;
  }
}

TEST(ScaleBalance, KeepsTheShares) {
  EXPECT_THAT(scale_balance({140, 230}, 370), ElementsAre(140, 230));
  EXPECT_THAT(scale_balance({140, 230}, 37), ElementsAre(14, 23));
  for (int64_t layers = 8; layers < 100; ++layers) {
    const std::vector<int64_t> scaled = scale_balance({26, 22, 33, 44, 44, 66, 66, 69}, layers);
    EXPECT_EQ(std::accumulate(scaled.begin(), scaled.end(), int64_t{0}), layers);
    for (int64_t size : scaled) EXPECT_GT(size, 0) << layers;
  }
  EXPECT_THROW(scale_balance({1, 1, 1}, 2), std::invalid_argument);
}

TEST(Settle, FullIsThePublishedConfiguration) {
  const Settings settings = settle(find_experiments("pipeline-1k")[0], Scale::kFull, {});
  EXPECT_EQ(settings.network(), "ResNet-101");
  EXPECT_EQ(settings.layers(), 370);
  EXPECT_THAT(settings.balance, ElementsAre(26, 22, 33, 44, 44, 66, 66, 69));
  EXPECT_EQ(settings.batch_size, 1024);
  EXPECT_EQ(settings.chunks, 64);
  EXPECT_EQ(settings.epochs, 90);
  EXPECT_EQ(settings.limit_train, 0);
  EXPECT_EQ(settings.reference_batch, 256);
  EXPECT_EQ(settings.decay, LrDecay::kSteps);
  EXPECT_DOUBLE_EQ(settings.weight_decay, 1e-4);
}

TEST(Settle, SmokeShrinksNetworkBatchAndBalance) {
  for (const Experiment& experiment : published_experiments()) {
    const Settings settings = settle(experiment, Scale::kSmoke, {});
    EXPECT_EQ(settings.layers(), 51);
    EXPECT_LT(settings.batch_size, experiment.batch_size);
    EXPECT_GE(settings.batch_size / settings.chunks, 32) << experiment.name;
    EXPECT_LE(settings.chunks, experiment.chunks);
    EXPECT_EQ(settings.balance.size(), experiment.balance.size());
  }
}

TEST(Settle, Overrides) {
  Overrides overrides;
  overrides.epochs = 3;
  overrides.batch_size = 20;
  overrides.chunks = 5;
  overrides.balance = {50, 1};
  overrides.limit_train = 100;
  const Settings settings = settle(find_experiments("pipeline-256")[0], Scale::kSmoke, overrides);
  EXPECT_EQ(settings.epochs, 3);
  EXPECT_EQ(settings.batch_size, 20);
  EXPECT_EQ(settings.chunks, 5);
  EXPECT_THAT(settings.balance, ElementsAre(50, 1));
  EXPECT_EQ(settings.limit_train, 100);
}

TEST(Settle, ABalanceThatDoesNotFit) {
  Overrides overrides;
  overrides.balance = {50, 2};
  EXPECT_THAT([&] { settle(find_experiments("pipeline-256")[0], Scale::kSmoke, overrides); },
              ThrowsMessage<std::invalid_argument>(
                  AllOf(HasSubstr("sums up to 52"), HasSubstr("51 layers"))));
  EXPECT_THAT([&] { settle(find_experiments("naive-128")[0], Scale::kSmoke, overrides); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("for pipelines")));
}

}  // namespace
}  // namespace gpipe::experiments
