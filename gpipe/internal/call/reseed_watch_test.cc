#include "gpipe/internal/call/reseed_watch.h"

#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpipe/testing/log_capture.h"

namespace gpipe::internal {
namespace {

TEST(ReseedWatch, TellsOnceThatTheGeneratorWasSeeded) {
  const testing::LogCapture log;
  at::manual_seed(1);
  { const ReseedWatch watch; }
  EXPECT_THAT(log.warnings(), ::testing::IsEmpty())
      << "a seed set before the watch began causes no warning";
  for (int k = 2; k < 4; ++k) {
    {
      const ReseedWatch watch;
      at::manual_seed(k);
    }
    EXPECT_THAT(log.warnings(), ::testing::ElementsAre(::testing::HasSubstr("Seed between calls")));
  }
}

}  // namespace
}  // namespace gpipe::internal
