#include "command/select_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace gpipe::command {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

const std::vector<std::string> kKnown = {"baseline", "pipeline-1", "pipeline-2"};

TEST(SelectNames, EachOnceInTheKnownOrder) {
  EXPECT_THAT(select_names("--experiment", "pipeline-2, baseline,pipeline-2", kKnown),
              ElementsAre("baseline", "pipeline-2"));
  EXPECT_EQ(select_names("--experiment", "all", kKnown), kKnown);
}

TEST(SelectNames, AnUnknownOneIsNamedWithTheClosest) {
  EXPECT_THAT([] { select_names("--experiment", "baseline,pipeline2", kKnown); },
              ThrowsMessage<std::invalid_argument>(
                  AllOf(HasSubstr("--experiment=baseline,pipeline2"), HasSubstr("'pipeline2'"),
                        HasSubstr("did you mean pipeline-2?"), HasSubstr("baseline, pipeline-1"))));
  EXPECT_THAT(
      [] { select_names("--experiment", "unet", kKnown); },
      ThrowsMessage<std::invalid_argument>(AllOf(HasSubstr("'unet'"), Not(HasSubstr("mean")))));
  EXPECT_THROW(select_names("--experiment", "", kKnown), std::invalid_argument);
}

}  // namespace
}  // namespace gpipe::command
