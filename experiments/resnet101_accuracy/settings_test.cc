#include "experiments/resnet101_accuracy/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "experiments/frame/variants.h"

namespace gpipe::experiments {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

const Experiment& find_experiment(const std::string& name) {
  return find_variant(published_experiments(), name);
}

CommonFlags at_scale(Scale scale) {
  CommonFlags flags;
  flags.scale = scale;
  return flags;
}

TEST(Settle, FullIsThePublishedConfiguration) {
  const Settings settings = settle(find_experiment("pipeline-1k"), at_scale(Scale::kFull));
  EXPECT_EQ(settings.network.name(), "ResNet-101");
  EXPECT_EQ(settings.network.layers(), 370);
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
    const Settings settings = settle(experiment, at_scale(Scale::kSmoke));
    EXPECT_EQ(settings.network.layers(), 51);
    EXPECT_LT(settings.batch_size, experiment.batch_size);
    EXPECT_GE(settings.batch_size / settings.chunks, 32) << experiment.name;
    EXPECT_LE(settings.chunks, experiment.chunks);
    EXPECT_EQ(settings.balance.size(), experiment.balance.size());
  }
}

TEST(Settle, FlagsDecideOtherwise) {
  CommonFlags flags;
  flags.epochs = 3;
  flags.batch_size = 20;
  flags.chunks = 5;
  flags.balance = {50, 1};
  const Settings settings = settle(find_experiment("pipeline-256"), flags, 100);
  EXPECT_EQ(settings.epochs, 3);
  EXPECT_EQ(settings.batch_size, 20);
  EXPECT_EQ(settings.chunks, 5);
  EXPECT_THAT(settings.balance, ElementsAre(50, 1));
  EXPECT_EQ(settings.limit_train, 100);
}

TEST(Settle, ABalanceThatDoesNotFit) {
  CommonFlags flags;
  flags.balance = {50, 2};
  EXPECT_THAT([&] { settle(find_experiment("pipeline-256"), flags); },
              ThrowsMessage<std::invalid_argument>(
                  AllOf(HasSubstr("sums up to 52"), HasSubstr("51 layers"))));
  EXPECT_TRUE(settle(find_experiment("naive-128"), flags).balance.empty());
}

}  // namespace
}  // namespace gpipe::experiments
