#include "gpipe/distributed/gather_timelines.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "gpipe/distributed/clock_offset.h"
#include "gpipe/distributed/sockets/bytes.h"
#include "gpipe/internal/processes/processes.h"

namespace gpipe {
namespace distributed {
namespace {

using Steps = std::vector<StepTimeline>;

void write(ByteWriter& writer, const TimelineAction& timed) {
  writer.number(static_cast<uint8_t>(timed.action.kind));
  writer.number(timed.action.stage);
  writer.number(timed.action.micro_batch);
  writer.number(timed.begin);
  writer.number(timed.end);
  writer.number(timed.recompute_begin);
  writer.number(timed.recompute_end);
  writer.number(static_cast<uint8_t>(timed.failed));
}

TimelineAction read_action(ByteReader& reader) {
  TimelineAction timed;
  timed.action.kind = static_cast<ActionKind>(reader.number<uint8_t>());
  timed.action.stage = reader.number<decltype(timed.action.stage)>();
  timed.action.micro_batch = reader.number<decltype(timed.action.micro_batch)>();
  timed.begin = reader.number<int64_t>();
  timed.end = reader.number<int64_t>();
  timed.recompute_begin = reader.number<int64_t>();
  timed.recompute_end = reader.number<int64_t>();
  timed.failed = reader.number<uint8_t>() != 0;
  return timed;
}

std::string to_bytes(const Steps& steps) {
  ByteWriter writer;
  writer.number(static_cast<uint64_t>(steps.size()));
  for (const StepTimeline& step : steps) {
    writer.number(step.run);
    writer.number(static_cast<uint8_t>(step.unfinished));
    writer.number(static_cast<uint64_t>(step.workers.size()));
    for (const std::vector<TimelineAction>& actions : step.workers) {
      writer.number(static_cast<uint64_t>(actions.size()));
      for (const TimelineAction& timed : actions) write(writer, timed);
    }
  }
  return writer.take();
}

Steps from_bytes(const std::string& bytes) {
  ByteReader reader(bytes);
  Steps steps;
  for (auto left = reader.number<uint64_t>(); left > 0; --left) {
    StepTimeline& step = steps.emplace_back();
    step.run = reader.number<int64_t>();
    step.unfinished = reader.number<uint8_t>() != 0;
    for (auto workers = reader.number<uint64_t>(); workers > 0; --workers) {
      std::vector<TimelineAction>& actions = step.workers.emplace_back();
      for (auto more = reader.number<uint64_t>(); more > 0; --more) {
        actions.push_back(read_action(reader));
      }
    }
  }
  reader.end();
  return steps;
}

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
    for (StepTimeline& own : from_bytes(of_ranks.at(static_cast<size_t>(rank)))) {
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
        internal::exchange_long(*processes, "the timelines", to_bytes(steps));
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
