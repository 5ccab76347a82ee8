#include "experiments/amoebanetd_memory/published.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <set>
#include <string>

#include "meta/meta_scope.h"
#include "models/by_name.h"

namespace gpipe::experiments {
namespace {

class PublishedAmoebaNetDMemory : public ::testing::TestWithParam<Edition> {};

INSTANTIATE_TEST_SUITE_P(Editions, PublishedAmoebaNetDMemory,
                         ::testing::Values(Edition::kCurrent, Edition::kJune2019));

int64_t layers(const std::string& network) {
  const MetaScope scope;
  return static_cast<int64_t>(models::model_by_name(network).make()->size());
}

TEST_P(PublishedAmoebaNetDMemory, BalancesFitTheNetworks) {
  for (const MemoryVariant& variant : amoebanetd_memory(GetParam()).variants) {
    if (variant.balance.empty()) continue;
    EXPECT_EQ(std::accumulate(variant.balance.begin(), variant.balance.end(), int64_t{0}),
              layers(variant.network))
        << variant.name;
  }
}

TEST_P(PublishedAmoebaNetDMemory, EveryRowHasAVariant) {
  const MemoryExperiment experiment = amoebanetd_memory(GetParam());
  ASSERT_EQ(experiment.table.rows.size(), experiment.variants.size());
  for (size_t k = 0; k < experiment.variants.size(); ++k) {
    EXPECT_EQ(experiment.table.rows[k].experiment, experiment.variants[k].name);
  }
}

TEST_P(PublishedAmoebaNetDMemory, SmallNetworksCanBeMade) {
  const MemoryExperiment experiment = amoebanetd_memory(GetParam());
  std::set<std::string> networks;
  for (const MemoryVariant& variant : experiment.variants) {
    for (const Scale scale : {Scale::kSmoke, Scale::kSmall}) {
      const SmallNetwork small = experiment.shrink(variant, scale);
      EXPECT_GE(layers(small.network), static_cast<int64_t>(variant.balance.size()));
      networks.insert(small.network);
    }
  }
  EXPECT_GE(networks.size(), 8u);
}

TEST(OldAmoebaNetDMemory, SaysWhatIsAssumed) {
  for (const MemoryVariant& variant : amoebanetd_memory(Edition::kJune2019).variants) {
    EXPECT_EQ(variant.note.rfind("assumed: ", 0), 0u) << variant.name;
    EXPECT_EQ(variant.note.find("balance") != std::string::npos, variant.balance.size() > 1)
        << variant.name;
  }
}

}  // namespace
}  // namespace gpipe::experiments
