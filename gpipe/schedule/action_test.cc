#include "gpipe/schedule/action.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace gpipe {
namespace {

using ::testing::HasSubstr;

TEST(Action, TextIsLetterStageMicroBatch) {
  EXPECT_EQ((Action{ActionKind::kForward, 0, 3}.to_text()), "F0.3");
  EXPECT_EQ((Action{ActionKind::kBackward, 12, 0}.to_text()), "B12.0");
  EXPECT_EQ((Action{ActionKind::kInputGradient, 1, 10}.to_text()), "I1.10");
  EXPECT_EQ((Action{ActionKind::kWeightGradient, 7, 7}.to_text()), "W7.7");
  EXPECT_EQ((Action{ActionKind::kOffload, 0, 2}.to_text()), "O0.2");
  EXPECT_EQ((Action{ActionKind::kReload, 3, 1}.to_text()), "L3.1");
}

TEST(Action, TextRoundTrip) {
  const int32_t most = std::numeric_limits<int32_t>::max();
  for (int kind = 0; kind < kActionKinds; ++kind) {
    for (int32_t stage : {0, 1, 9, 10, most}) {
      for (int32_t micro_batch : {0, 1, 9, 10, most}) {
        const Action action{static_cast<ActionKind>(kind), stage, micro_batch};
        EXPECT_EQ(Action::from_text(action.to_text()), action) << action.to_text();
      }
    }
  }
}

TEST(Action, MalformedTextThrows) {
  for (const char* text : {"",      "F",     "F0",     "F.",    "F0.",   "F.0",          "0.0",
                           "X0.0",  "f0.0",  "F-1.0",  "F0.-1", "F+1.0", "F00.0",        "F0.01",
                           "F0.0 ", " F0.0", "F0.0.0", "F0,0",  "F0x.0", "F2147483648.0"}) {
    SCOPED_TRACE(text);
    try {
      Action::from_text(text);
      ADD_FAILURE() << "accepted";
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), HasSubstr("'" + std::string(text) + "' is not an action"));
      EXPECT_THAT(error.what(), HasSubstr("as in F0.3"));
    }
  }
}

TEST(Action, EqualityOrderAndHashUseEveryField) {
  std::set<Action> ordered;
  std::unordered_set<Action> hashed;
  for (int kind = 0; kind < kActionKinds; ++kind) {
    for (int32_t stage = 0; stage < 4; ++stage) {
      for (int32_t micro_batch = 0; micro_batch < 4; ++micro_batch) {
        const Action action{static_cast<ActionKind>(kind), stage, micro_batch};
        for (int twice = 0; twice < 2; ++twice) {
          ordered.insert(action);
          hashed.insert(action);
        }
      }
    }
  }
  EXPECT_EQ(ordered.size(), 96u);
  EXPECT_EQ(hashed.size(), 96u);
  EXPECT_NE((Action{ActionKind::kForward, 0, 1}), (Action{ActionKind::kForward, 1, 0}));
  EXPECT_LT((Action{ActionKind::kForward, 5, 5}), (Action{ActionKind::kBackward, 0, 0}));
}

TEST(Action, UnknownKindThrows) {
  EXPECT_THROW(letter(static_cast<ActionKind>(9)), std::invalid_argument);
}

// GoogleTest prints actions and kinds as << writes them.
TEST(Action, IsPrinted) {
  EXPECT_EQ(::testing::PrintToString(Action{ActionKind::kInputGradient, 2, 13}), "I2.13");
  EXPECT_EQ(::testing::PrintToString(ActionKind::kWeightGradient), "W");
  const auto none = static_cast<ActionKind>(9);
  EXPECT_EQ(::testing::PrintToString(Action{none, 0, 1}), "ActionKind(9)0.1") << "does not throw";
}

TEST(Action, TextThatIsKeptForLaterIsRefusedByName) {
  const auto complaint = [](const std::string& text) -> std::string {
    try {
      Action::from_text(text);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "accepted";
  };
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"G0.3", "G is reserved for gathers of parameters"},
           {"R0.3", "R is reserved for reductions of gradients"},
           {"C0.3", "C is reserved for losses"},
           {"F0.3.1", "a third number is reserved for slices of a sequence"}}) {
    EXPECT_NE(complaint(text).find(part), std::string::npos) << complaint(text);
  }
  for (const std::string text : {"G", "G0", "Q0.3", "F0.3.", "F0.3.1.2"}) {
    EXPECT_EQ(complaint(text).find("kept"), std::string::npos) << complaint(text);
  }
}

}  // namespace
}  // namespace gpipe
