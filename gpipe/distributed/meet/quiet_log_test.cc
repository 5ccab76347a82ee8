#include "gpipe/distributed/meet/quiet_log.h"

#include <c10/util/Logging.h>
#include <gtest/gtest.h>

#include <optional>

namespace gpipe::distributed {
namespace {

constexpr int kInfo = 0;
constexpr int kWarning = 1;
constexpr int kError = 2;
constexpr int kFatal = 3;

TEST(QuietLog, LeavesOutWarningsWhileItLives) {
  ASSERT_EQ(FLAGS_caffe2_log_level, kWarning);
  {
    const QuietLog quiet;
    EXPECT_EQ(FLAGS_caffe2_log_level, kError);
  }
  EXPECT_EQ(FLAGS_caffe2_log_level, kWarning);
}

TEST(QuietLog, EndsWithTheLastOfSeveral) {
  std::optional<QuietLog> first(std::in_place);
  std::optional<QuietLog> second(std::in_place);
  first.reset();
  EXPECT_EQ(FLAGS_caffe2_log_level, kError);
  second.reset();
  EXPECT_EQ(FLAGS_caffe2_log_level, kWarning);
}

TEST(QuietLog, LeavesALevelThatTheUserHasChosen) {
  for (const int level : {-1, kInfo, kError, kFatal}) {
    FLAGS_caffe2_log_level = level;
    {
      const QuietLog quiet;
      EXPECT_EQ(FLAGS_caffe2_log_level, level);
    }
    EXPECT_EQ(FLAGS_caffe2_log_level, level);
  }
  FLAGS_caffe2_log_level = kWarning;
}

TEST(QuietLog, LeavesALevelThatTheUserChoosesMeanwhile) {
  for (const int level : {-1, kInfo, kFatal}) {
    {
      const QuietLog quiet;
      FLAGS_caffe2_log_level = level;
    }
    EXPECT_EQ(FLAGS_caffe2_log_level, level);
  }
  FLAGS_caffe2_log_level = kError;
  {
    const QuietLog quiet;
    FLAGS_caffe2_log_level = kWarning;
  }
  EXPECT_EQ(FLAGS_caffe2_log_level, kWarning);
}

}  // namespace
}  // namespace gpipe::distributed
