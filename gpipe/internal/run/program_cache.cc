#include "gpipe/internal/run/program_cache.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "gpipe/schedule/action.h"
#include "gpipe/schedule/follows_at_once.h"
#include "gpipe/schedule/whole_step.h"

namespace gpipe::internal {
namespace {

// How many programs are kept. The last batch of an epoch may give another number of micro-batches.
// A few programs are enough.
constexpr size_t kKept = 16;

void check(const Schedule& schedule, const Routes& routes) {
  TORCH_CHECK_VALUE(schedule.stages() == routes.stages(), "the schedule is for ", schedule.stages(),
                    " stages, but the pipeline has ", routes.stages(), "; give one for ",
                    routes.stages(), ", or a ScheduleGenerator (Schedule::one_f_one_b, say)");
  TORCH_CHECK_VALUE(schedule.workers() <= routes.stages(), "the schedule has ", schedule.workers(),
                    " workers, but the pipeline has ", routes.stages(),
                    " stages, and each worker needs one; give a schedule of at most ",
                    routes.stages(), " workers");
  try {
    // Slots keep what was sent until it is received, so no send waits for its receiver.
    schedule.verify(routes, Sends::kBuffered);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, "the schedule cannot be run: ", error.what());
  }
  // verify() also accepts half a schedule, so this checks that both halves are there.
  const char* const missing = missing_half(schedule);
  TORCH_CHECK_VALUE(missing == nullptr, "the schedule has no ", missing,
                    "; give the whole schedule and not a half of it");
}

// [stage] Whether the actions of these kinds take the micro-batches in their order.
std::vector<bool> ascend(const Schedule& schedule, const std::vector<ActionKind>& kinds) {
  std::vector<bool> result(static_cast<size_t>(schedule.stages()), true);
  std::vector<int64_t> latest(result.size(), -1);  // [stage]
  for (const std::vector<Action>& actions : schedule.table()) {
    for (const Action& action : actions) {
      if (std::find(kinds.begin(), kinds.end(), action.kind) == kinds.end()) continue;
      if (action.micro_batch < latest[action.stage]) result[action.stage] = false;
      latest[action.stage] = action.micro_batch;
    }
  }
  return result;
}

Schedule half_of(const Schedule& schedule, ProgramCache::Half half) {
  switch (half) {
    case ProgramCache::Half::kForward:
      return schedule.only({ActionKind::kForward});
    case ProgramCache::Half::kBackward:
      return schedule.only({ActionKind::kBackward});
    case ProgramCache::Half::kBoth:
      break;
  }
  return schedule;
}

}  // namespace

ProgramCache::Compiled& ProgramCache::get(const Schedule& schedule, Half half) {
  for (const auto& compiled : programs_) {
    if (compiled->half == half && compiled->schedule == schedule) return *compiled;
  }
  check(schedule, routes_);
  if (programs_.size() >= kKept) programs_.erase(programs_.begin());
  const std::vector<bool> sums_ascend =
      ascend(schedule, {ActionKind::kBackward, ActionKind::kWeightGradient});
  programs_.push_back(std::make_unique<Compiled>(Compiled{
      schedule, half, compile(half_of(schedule, half), routes_), follows_at_once(schedule),
      ascend(schedule, {ActionKind::kForward}),
      std::find(sums_ascend.begin(), sums_ascend.end(), false) == sums_ascend.end(), nullptr}));
  return *programs_.back();
}

}  // namespace gpipe::internal
