#include "plan.h"

#include <algorithm>

#include "gpipe/schedule/schedule.h"

namespace {

int64_t fullest(const gpipe::Schedule& schedule) {
  const gpipe::ScheduleFacts facts = schedule.verify();
  return *std::max_element(facts.peak_live.begin(), facts.peak_live.end());
}

}  // namespace

Plan plan(int64_t stages, int64_t micro_batches) {
  return {fullest(gpipe::Schedule::gpipe(stages, micro_batches)),
          fullest(gpipe::Schedule::one_f_one_b(stages, micro_batches))};
}
