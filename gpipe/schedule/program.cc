#include "gpipe/schedule/program.h"

#include <ostream>
#include <sstream>

#include "gpipe/schedule/dependencies.h"
#include "gpipe/schedule/verify.h"

namespace gpipe {

Program compile(const Schedule& schedule, const Routes& routes) {
  const internal::Dependencies dependencies(schedule.stages(), schedule.micro_batches(),
                                            schedule.table(), routes);
  internal::check_buffered(schedule.stages(), schedule.micro_batches(), schedule.table(), routes,
                           dependencies);

  Program program;
  program.slots.assign(static_cast<size_t>(schedule.workers()), 0);
  for (const std::vector<Action>& actions : schedule.table()) {
    std::vector<Step>& steps = program.workers.emplace_back();
    for (const Action& action : actions) steps.push_back({action, {}, {}});
  }
  // Slots are numbered in the order in which the receiver uses them. The sender records its slots
  // in the order of its own routes. It finds each by the route, because two routes may join the
  // same two actions.
  for (int32_t worker = 0; worker < schedule.workers(); ++worker) {
    for (Step& step : program.workers[static_cast<size_t>(worker)]) {
      for (const auto& need : dependencies.needs(step.action)) {
        if (!need.route) continue;
        const int32_t slot = program.slots[static_cast<size_t>(worker)]++;
        step.receives.push_back(slot);
        Step& sender = program.workers[static_cast<size_t>(need.position.worker)]
                                      [static_cast<size_t>(need.position.index)];
        const auto feeds = dependencies.feeds(sender.action);
        sender.sends.resize(feeds.size());
        for (size_t k = 0; k < feeds.size(); ++k) {
          if (feeds[k].route == need.route) sender.sends[k] = {worker, slot, step.action.stage};
        }
      }
    }
  }
  return program;
}

std::ostream& operator<<(std::ostream& out, const Step::Send& send) {
  return out << send.worker << ":" << send.slot;
}

std::ostream& operator<<(std::ostream& out, const Step& step) {
  out << step.action;
  if (!step.receives.empty()) out << " <-";
  for (const int32_t slot : step.receives) out << " " << slot;
  if (!step.sends.empty()) out << " ->";
  for (const Step::Send& send : step.sends) out << " " << send;
  return out;
}

std::ostream& operator<<(std::ostream& out, const Program& program) {
  for (size_t worker = 0; worker < program.workers.size(); ++worker) {
    for (const Step& step : program.workers[worker]) {
      out << "worker " << worker << ": " << step << "\n";
    }
  }
  return out;
}

std::string Program::to_text() const {
  for (const std::vector<Step>& steps : workers) {
    // letter() throws for an invalid kind, which << would write.
    for (const Step& step : steps) (void)letter(step.action.kind);
  }
  std::ostringstream text;
  text << *this;
  return text.str();
}

}  // namespace gpipe
