#include "experiments/unet_memory/published.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <string>

#include "meta/meta_scope.h"
#include "models/by_name.h"

namespace gpipe::experiments {
namespace {

int64_t layers(const std::string& network) {
  const MetaScope scope;
  return static_cast<int64_t>(models::model_by_name(network).make()->size());
}

TEST(PublishedUNetMemory, BalancesFitTheNetworks) {
  for (const MemoryVariant& variant : unet_memory().variants) {
    if (variant.balance.empty()) continue;
    EXPECT_EQ(std::accumulate(variant.balance.begin(), variant.balance.end(), int64_t{0}),
              layers(variant.network))
        << variant.name;
  }
}

TEST(PublishedUNetMemory, EveryRowHasAVariant) {
  const MemoryExperiment experiment = unet_memory();
  ASSERT_EQ(experiment.table.rows.size(), experiment.variants.size());
  for (size_t k = 0; k < experiment.variants.size(); ++k) {
    EXPECT_EQ(experiment.table.rows[k].experiment, experiment.variants[k].name);
  }
}

TEST(PublishedUNetMemory, SmallNetworksKeepTheProportions) {
  const MemoryExperiment experiment = unet_memory();
  const auto smoke = [&experiment](size_t k) {
    return experiment.shrink(experiment.variants[k], Scale::kSmoke).network;
  };
  EXPECT_EQ(smoke(0), "unet:1,5");
  EXPECT_EQ(smoke(4), "unet:8,10");
  EXPECT_EQ(experiment.shrink(experiment.variants[2], Scale::kSmall).network, "unet:8,16");
}

}  // namespace
}  // namespace gpipe::experiments
