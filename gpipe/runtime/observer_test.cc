#include "gpipe/runtime/observer.h"

#include <gtest/gtest.h>

#include <sstream>

namespace gpipe {
namespace {

std::string text_of(const Event& event) {
  std::ostringstream out;
  out << event;
  return out.str();
}

TEST(Event, HasAText) {
  Event event{Event::Edge::kBegin, {ActionKind::kForward, 1, 3}, 2, {}};
  event.run = 7;
  EXPECT_EQ(text_of(event), "run 7, worker 2: F1.3 begins");
  event.edge = Event::Edge::kEnd;
  EXPECT_EQ(text_of(event), "run 7, worker 2: F1.3 ends");
  event.failed = true;
  EXPECT_EQ(text_of(event), "run 7, worker 2: F1.3 ends, failed");
  event.failed = false;
  event.action.kind = ActionKind::kBackward;
  event.recompute_end += std::chrono::seconds(1);
  EXPECT_EQ(text_of(event), "run 7, worker 2: B1.3 ends, with a recompute");
  // Operator << is for debugging, so it throws for no value of ActionKind.
  event.action.kind = static_cast<ActionKind>(9);
  EXPECT_NE(text_of(event).find("ActionKind(9)"), std::string::npos);
}

}  // namespace
}  // namespace gpipe
