#include "gpipe/internal/boundary/ports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;

// "a:2" is the skip `a` from or to stage 2; "-:1" is the activation from or to stage 1.
std::vector<std::string> texts(const std::vector<Ports::Port>& ports) {
  std::vector<std::string> result;
  for (const Ports::Port& port : ports) {
    result.push_back((port.skip ? port.skip->name : "-") + ":" + std::to_string(port.stage));
  }
  return result;
}

// Stage 0 (layers 0, 1) stashes a, b and c for layers 6, 8 and 7; stage 1 stashes d for layer 9.
class PortsTest : public ::testing::Test {
 protected:
  std::vector<skip::SkipEdge> skips_ = {edge("a", 1, 6, 0, 2), edge("b", 0, 8, 0, 3),
                                        edge("c", 0, 7, 0, 3), edge("d", 3, 9, 1, 3)};
  Routes routes_ = [this] {
    std::vector<Route> routes;
    for (const skip::SkipEdge& skip : skips_) {
      routes.push_back({skip.source_partition, skip.target_partition, skip.key.name});
    }
    return Routes::create(4, routes);
  }();

 private:
  static skip::SkipEdge edge(const std::string& name, int source_layer, int target_layer,
                             int source, int target) {
    return {{skip::Namespace(), name}, source_layer, target_layer, source, target};
  }
};

TEST_F(PortsTest, TheActivationComesFirstAtBothEndsOfThePipelineToo) {
  EXPECT_THAT(texts(ports_of(0, routes_, skips_).inputs), ElementsAre("-:-1"));
  EXPECT_THAT(texts(ports_of(0, routes_, skips_).outputs), ElementsAre("-:1", "a:2", "b:3", "c:3"));
  EXPECT_THAT(texts(ports_of(1, routes_, skips_).outputs), ElementsAre("-:2", "d:3"));
  EXPECT_THAT(texts(ports_of(2, routes_, skips_).inputs), ElementsAre("-:1", "a:0"));
  EXPECT_THAT(texts(ports_of(3, routes_, skips_).inputs), ElementsAre("-:2", "b:0", "c:0", "d:1"));
  EXPECT_THAT(texts(ports_of(3, routes_, skips_).outputs), ElementsAre("-:4"));
}

TEST_F(PortsTest, GradientsAreAddedUpFromTheLastUseToTheFirst) {
  EXPECT_THAT(ports_of(0, routes_, skips_).gradient_order, ElementsAre(2, 3, 1, 0));
  EXPECT_THAT(ports_of(1, routes_, skips_).gradient_order, ElementsAre(1, 0));
  EXPECT_THAT(ports_of(3, routes_, skips_).gradient_order, ElementsAre(0));
}

TEST(Ports, HopsGoFromEachPartitionToTheNext) {
  const skip::SkipEdge skip{{skip::Namespace(), "a"}, 1, 9, 0, 3};
  const skip::SkipEdge near{{skip::Namespace(), "b"}, 4, 6, 1, 2};
  const std::vector<skip::SkipEdge> chain = hops({skip, near});
  ASSERT_EQ(chain.size(), 4u);
  for (int32_t k = 0; k < 3; ++k) EXPECT_EQ(chain[k], (skip::SkipEdge{skip.key, 1, 9, k, k + 1}));
  EXPECT_EQ(chain[3], near);
}

}  // namespace
}  // namespace gpipe::internal
