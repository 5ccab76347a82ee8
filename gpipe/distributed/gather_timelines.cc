#include "gpipe/distributed/gather_timelines.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "gpipe/distributed/clock_offset.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/runtime/bytes.h"

namespace gpipe {

static auto fields(Action& action) {
  return std::tie(action.kind, action.stage, action.micro_batch);
}
static auto fields(TimelineAction& timed) {
  return std::tie(timed.action, timed.begin, timed.end, timed.recompute_begin, timed.recompute_end,
                  timed.failed);
}
static auto fields(StepTimeline& step) { return std::tie(step.run, step.unfinished, step.workers); }

namespace distributed {
namespace {

using Steps = std::vector<StepTimeline>;

// Adds the workers of rank `rank` to the step.
void add(StepTimeline& step, StepTimeline other, int64_t rank) {
  step.unfinished = step.unfinished || other.unfinished;
  if (step.workers.size() < other.workers.size()) step.workers.resize(other.workers.size());
  for (size_t worker = 0; worker < other.workers.size(); ++worker) {
    if (other.workers[worker].empty()) continue;
    if (!step.workers[worker].empty()) {
      internal::found_by_all("gather_timelines: rank " + std::to_string(rank) +
                             " has recorded worker " + std::to_string(worker) +
                             ", as another rank of its replica has; record a pipeline over the "
                             "processes, and no other one beside it");
    }
    step.workers[worker] = std::move(other.workers[worker]);
  }
}

// Joins the steps of a replica's processes by their numbers and not by their order, because a step
// that failed may have begun in some processes only.
Steps steps_of_replica(const World& world, const std::vector<std::string>& of_ranks,
                       int64_t replica) {
  std::map<int64_t, StepTimeline> steps;
  std::map<int64_t, std::set<int64_t>> ranks_of;
  for (int64_t process = 0; process < world.processes_each(); ++process) {
    const int64_t rank = world.rank_of(replica, process);
    for (StepTimeline& own : internal::from_bytes<Steps>(of_ranks.at(static_cast<size_t>(rank)))) {
      const int64_t run = own.run;
      add(steps[run], std::move(own), rank);
      ranks_of[run].insert(rank);
    }
  }
  Steps result;
  for (auto& [run, step] : steps) {
    const std::set<int64_t>& ranks = ranks_of[run];
    for (int64_t process = 0; process < world.processes_each(); ++process) {
      const int64_t rank = world.rank_of(replica, process);
      if (step.failed() || step.unfinished || ranks.count(rank) > 0) continue;
      internal::found_by_all("gather_timelines: rank " + std::to_string(rank) +
                             " has recorded nothing of a step (its number " + std::to_string(run) +
                             ") of which rank " + std::to_string(*ranks.begin()) +
                             " has; make, or clear, the timelines of all processes between the "
                             "same two steps, and run the same pipelines in all of them");
    }
    step.run = run;
    result.push_back(std::move(step));
  }
  return result;
}

void begin_with_zero(std::vector<Steps>& replicas) {
  int64_t first = INT64_MAX;
  for (const Steps& steps : replicas) {
    for (const StepTimeline& step : steps) first = std::min(first, step.begin());
  }
  for (Steps& steps : replicas) {
    for (StepTimeline& step : steps) move_clock(step, -first);
  }
}

}  // namespace

std::vector<Steps> gather_timelines(const World& world, Steps steps, const Clock& clock) {
  internal::Processes* const processes = world.processes().get();
  std::vector<Steps> replicas = internal::in_call(processes, [&] {
    if (processes == nullptr) return std::vector<Steps>{std::move(steps)};
    processes->agree("gather_timelines", "");
    const int64_t offset = clock_offset(*processes, clock);
    for (StepTimeline& step : steps) move_clock(step, offset);
    const std::vector<std::string> of_ranks =
        internal::exchange_long(*processes, "the timelines", internal::to_bytes(steps));
    std::vector<Steps> gathered;
    for (int64_t replica = 0; replica < world.replicas(); ++replica) {
      gathered.push_back(steps_of_replica(world, of_ranks, replica));
    }
    return gathered;
  });
  begin_with_zero(replicas);
  return replicas;
}

}  // namespace distributed

std::vector<std::vector<StepTimeline>> gather_timelines(const World& world,
                                                        const Timeline& timeline) {
  return distributed::gather_timelines(world, timeline.steps_of_steady_clock(),
                                       distributed::steady_clock_of_machine());
}

}  // namespace gpipe
