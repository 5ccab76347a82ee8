#include "experiments/frame/scale.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace gpipe::experiments {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Scale, EachHasAName) {
  for (const char* name : {"smoke", "small", "full"}) EXPECT_EQ(to_text(parse_scale(name)), name);
  EXPECT_EQ(parse_scale("small"), Scale::kSmall);
  EXPECT_THAT([] { parse_scale("tiny"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("smoke, small or full")));
}

}  // namespace
}  // namespace gpipe::experiments
