#include "gpipe/timeline/time_split_text.h"

#include <gtest/gtest.h>

#include "gpipe/schedule/schedule.h"
#include "gpipe/timeline/step_timeline.h"
#include "gpipe/timeline/time_split.h"

namespace gpipe {
namespace {

TEST(TimeSplitText, IsATable) {
  const Simulation run = simulate(Schedule::gpipe(2, 2), {uniform_cost({1.0, 2.0}), {}});
  const StepTimeline step = to_timeline(run, 1e-3, [](const Action& action) {
    return action.kind == ActionKind::kBackward ? 0.5 : 0.0;
  });
  EXPECT_EQ("\n" + to_text(split_time({step, step})), R"(
a step: 9 ms on 2 workers (mean of 2 steps), busy 66.7 %
             compute  recompute       fill      drain  imbalance   transfer   overhead
worker 0      55.6 %     11.1 %     33.3 %      0.0 %      0.0 %      0.0 %      0.0 %
worker 1      55.6 %     11.1 %     11.1 %     22.2 %      0.0 %      0.0 %      0.0 %
mean          55.6 %     11.1 %     22.2 %     11.1 %      0.0 %      0.0 %      0.0 %
mean, ms           5          1          2          1          0          0          0
)");
}

TEST(TimeSplitText, SaysIfThereIsNothing) {
  EXPECT_EQ(to_text(TimeSplit()),
            "no step has run to its end (over processes: in all of them, see gather_timelines)\n");
}

}  // namespace
}  // namespace gpipe
