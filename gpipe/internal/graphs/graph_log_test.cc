#include "gpipe/internal/graphs/graph_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpipe/testing/log_capture.h"

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;

TEST(GraphLog, WarnsWithTheStageAndTheReason) {
  const testing::LogCapture log;
  log_without_graphs(2, "a parameter has a hook");
  EXPECT_THAT(log.warnings(),
              ElementsAre("GPipe: stage 2 runs without graphs: a parameter has a hook"));
}

}  // namespace
}  // namespace gpipe::internal
