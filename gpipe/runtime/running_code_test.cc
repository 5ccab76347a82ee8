#include "gpipe/runtime/running_code.h"

#include <gtest/gtest.h>

#include <optional>

namespace gpipe::internal {
namespace {

TEST(RunningCode, NamesWhatHasNotReturnedSince) {
  RunningCode code({"stage 0", "layer 0", "layer 1"});
  EXPECT_TRUE(RunningCode::all_now().empty());
  std::optional<RunningCode::Action> action(code);
  RunningCode::Moment moment = RunningCode::all_now();
  EXPECT_EQ(RunningCode::unfinished(moment), "stage 0");
  code.enter(1);
  EXPECT_EQ(RunningCode::unfinished(moment), "");  // the stage has gone on to a layer
  moment = RunningCode::all_now();
  EXPECT_EQ(RunningCode::unfinished(moment), "layer 1");
  code.enter(1);  // a layer that runs again has returned before
  EXPECT_EQ(RunningCode::unfinished(moment), "");
  moment = RunningCode::all_now();
  action.reset();
  EXPECT_EQ(RunningCode::unfinished(moment), "");
  EXPECT_TRUE(RunningCode::all_now().empty());
}

TEST(RunningCode, OfAStageThatIsGoneIsForgotten) {
  RunningCode::Moment moment;
  {
    RunningCode code({"stage 0"});
    const RunningCode::Action action(code);
    moment = RunningCode::all_now();
  }
  EXPECT_EQ(RunningCode::unfinished(moment), "");
  EXPECT_TRUE(RunningCode::all_now().empty());
}

}  // namespace
}  // namespace gpipe::internal
