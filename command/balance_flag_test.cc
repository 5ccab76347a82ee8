#include "command/balance_flag.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace gpipe::command {
namespace {

using ::testing::ElementsAre;

TEST(ParseBalance, Lists) {
  EXPECT_THAT(parse_balance("140,230"), ElementsAre(140, 230));
  EXPECT_THAT(parse_balance("[1, 2, 3]"), ElementsAre(1, 2, 3));
  EXPECT_TRUE(parse_balance("").empty());
  for (const std::string text : {"1,,2", "1,x", "0,3", "-1,4", "1.5,2", "[1,2", "1,2]", "1,"}) {
    EXPECT_THROW(parse_balance(text), std::invalid_argument) << text;
  }
}

TEST(BalanceText, ReadsBack) {
  EXPECT_EQ(to_text({140, 230}), "[140, 230]");
  EXPECT_THAT(parse_balance(to_text({140, 230})), ElementsAre(140, 230));
}

}  // namespace
}  // namespace gpipe::command
