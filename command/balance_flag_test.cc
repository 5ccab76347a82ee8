#include "command/balance_flag.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

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

TEST(ParseBalance, NamesThePartitionWithoutLayers) {
  EXPECT_THAT([] { parse_balance("3,0,2"); },
              ::testing::ThrowsMessage<std::invalid_argument>(::testing::StrEq(
                  "--balance=3,0,2: partition 1 would have no layer; leave it out, as each needs "
                  "at least 1")));
}

TEST(ParseBalance, KnowsLayoutsOfMegatron) {
  for (const char* layout : {"Et|t*4|t|tL", "E|t|t*2|t||(t|)*2,t*2,L", "Et*3|(tt|)*29,m|L"}) {
    EXPECT_THAT([&] { parse_balance(layout); },
                ::testing::ThrowsMessage<std::invalid_argument>(
                    ::testing::HasSubstr("that is a layout of Megatron-LM")));
  }
}

TEST(BalanceSum, IsTheNumberOfLayers) {
  check_balance_sum({20, 31}, 51, "20,31", "the network");
  check_balance_sum({}, 51, "", "the network");
  const auto message = [](const std::vector<int64_t>& balance, const std::string& hint) {
    try {
      check_balance_sum(balance, 52, "GIVEN", "the network", hint);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  EXPECT_EQ(message({20, 31}, ""), "--balance=GIVEN sums up to 51, but the network has 52 layers");
  EXPECT_EQ(message({60}, "; a hint"),
            "--balance=GIVEN sums up to 60, but the network has 52 layers; a hint");
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  EXPECT_NE(message({kLargest, kLargest, 54}, ""), "nothing was thrown");
}

TEST(BalanceText, ReadsBack) {
  EXPECT_EQ(to_text({140, 230}), "[140, 230]");
  EXPECT_THAT(parse_balance(to_text({140, 230})), ElementsAre(140, 230));
}

}  // namespace
}  // namespace gpipe::command
