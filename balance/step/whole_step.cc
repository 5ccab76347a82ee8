#include "balance/step/whole_step.h"

#include <stdexcept>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpipe/schedule/action.h"

namespace gpipe::balance {

void check_whole_step(const Schedule& schedule, const std::string& prefix) {
  bool forwards = false, backwards = false;
  for (const std::vector<Action>& actions : schedule.table()) {
    for (const Action& action : actions) {
      (action.kind == ActionKind::kForward ? forwards : backwards) = true;
    }
  }
  if (forwards && backwards) return;
  throw std::invalid_argument(absl::StrCat(prefix, "the schedule has no ",
                                           forwards ? "backwards" : "forwards",
                                           "; a step needs both; give a whole schedule"));
}

}  // namespace gpipe::balance
