#include "experiments/frame/edition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace gpipe::experiments {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Edition, HasTwoNames) {
  EXPECT_EQ(parse_edition("current"), Edition::kCurrent);
  EXPECT_EQ(parse_edition("2019-06"), Edition::kJune2019);
  EXPECT_EQ(to_text(Edition::kCurrent), "");
  EXPECT_EQ(to_text(Edition::kJune2019), "2019-06");
  EXPECT_EQ(edition_flag(), Edition::kCurrent);
  EXPECT_THAT([] { parse_edition("2019"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("--edition=2019: give current")));
}

}  // namespace
}  // namespace gpipe::experiments
