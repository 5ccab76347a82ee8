#include "gpipe/internal/backward/node_order.h"

#include <gtest/gtest.h>

#include <vector>

namespace gpipe::internal {
namespace {

TEST(NodeOrder, ForeignNodesComeLastThenNumbersPositionsAndAge) {
  // The nodes in the order in which they run. Each differs from the next in the field that is
  // compared first.
  const std::vector<NodeOrder> order = {{false, 9, 4, 1}, {false, 7, 0, 1}, {false, 7, 2, 8},
                                        {false, 7, 2, 5}, {true, 9, 0, 9},  {true, 2, 0, 9}};
  for (size_t a = 0; a < order.size(); ++a) {
    for (size_t b = 0; b < order.size(); ++b) {
      EXPECT_EQ(runs_before(order[a], order[b]), a < b) << a << ", " << b;
    }
  }
}

}  // namespace
}  // namespace gpipe::internal
