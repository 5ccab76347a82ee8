#include "gpipe/schedule/verify.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "gpipe/schedule/dependencies.h"

namespace gpipe::internal {
namespace {

using Table = std::vector<std::vector<Action>>;

class Problems {
 public:
  void add(std::string problem) {
    ++count_;
    if (count_ <= kMostTold) problems_.push_back(std::move(problem));
  }

  void throw_if_any() const {
    if (count_ == 0) return;
    std::string text =
        "Schedule::verify: " + std::to_string(count_) + (count_ == 1 ? " problem:" : " problems:");
    for (const std::string& problem : problems_) text += "\n  - " + problem;
    if (count_ > kMostTold) {
      text += "\n  - and " + std::to_string(count_ - kMostTold) + " more";
    }
    throw std::invalid_argument(text);
  }

 private:
  // One wrong action causes a few problems. An empty table of the largest size would cause 2^24,
  // more than anybody reads and more memory than the table.
  static constexpr int64_t kMostTold = 100;

  std::vector<std::string> problems_;
  int64_t count_ = 0;
};

std::string place(size_t worker, size_t index) {
  return "worker " + std::to_string(worker) + " at position " + std::to_string(index);
}

// Group 1 of the header.
void check_completeness(int64_t stages, int64_t micro_batches, const Table& workers,
                        const Dependencies& dependencies, Problems* problems) {
  bool has_forward = false;
  bool has_backward = false;
  std::vector<int32_t> owner(static_cast<size_t>(stages), -1);
  std::vector<int32_t> told(static_cast<size_t>(stages), -1);  // the last worker reported
  for (size_t worker = 0; worker < workers.size(); ++worker) {
    for (size_t index = 0; index < workers[worker].size(); ++index) {
      const Action& action = workers[worker][index];
      const auto stage = static_cast<size_t>(action.stage);
      (action.kind == ActionKind::kForward ? has_forward : has_backward) = true;
      const Position first = dependencies.find(action);
      if (first.worker != static_cast<int32_t>(worker) ||
          first.index != static_cast<int32_t>(index)) {
        problems->add(action.to_text() + " is there twice: " +
                      place(static_cast<size_t>(first.worker), static_cast<size_t>(first.index)) +
                      " and " + place(worker, index));
      }
      if (owner[stage] < 0) owner[stage] = static_cast<int32_t>(worker);
      if (owner[stage] != static_cast<int32_t>(worker) &&
          told[stage] != static_cast<int32_t>(worker)) {
        told[stage] = static_cast<int32_t>(worker);
        problems->add("stage " + std::to_string(stage) + " is on worker " +
                      std::to_string(owner[stage]) + " and on worker " + std::to_string(worker) +
                      ", but a stage lives on one worker");
      }
    }
  }
  if (!has_forward && !has_backward) problems->add("there are no actions");
  for (int32_t stage = 0; stage < stages; ++stage) {
    for (int32_t i = 0; i < micro_batches; ++i) {
      const Action forward{ActionKind::kForward, stage, i};
      const Action backward{ActionKind::kBackward, stage, i};
      const Action input{ActionKind::kInputGradient, stage, i};
      const Action weight{ActionKind::kWeightGradient, stage, i};
      if (has_forward && !dependencies.find(forward))
        problems->add(forward.to_text() + " is missing");
      if (!has_backward) continue;
      const bool b = static_cast<bool>(dependencies.find(backward));
      const bool ig = static_cast<bool>(dependencies.find(input));
      const bool wg = static_cast<bool>(dependencies.find(weight));
      if (b && (ig || wg)) {
        problems->add(backward.to_text() + " is there beside " + (ig ? input : weight).to_text() +
                      ", but a cell's backward is either whole or split");
      } else if (!b && !ig && !wg) {
        problems->add(backward.to_text() + " is missing (or " + input.to_text() + " and " +
                      weight.to_text() + ")");
      } else if (!b && !ig) {
        problems->add(input.to_text() + " is missing, though " + weight.to_text() + " is there");
      } else if (!b && !wg) {
        problems->add(weight.to_text() + " is missing, though " + input.to_text() + " is there");
      }
    }
  }
}

// Group 2 of the header.
void check_order(const Table& workers, const Dependencies& dependencies, Problems* problems) {
  for (size_t worker = 0; worker < workers.size(); ++worker) {
    for (size_t index = 0; index < workers[worker].size(); ++index) {
      dependencies.for_each_need(workers[worker][index], [&](const Dependencies::Edge& need) {
        if (need.position.worker == static_cast<int32_t>(worker) &&
            need.position.index > static_cast<int32_t>(index)) {
          problems->add(workers[worker][index].to_text() + " (" + place(worker, index) +
                        ") comes before " + need.action.to_text() + " (position " +
                        std::to_string(need.position.index) + "), which it needs");
        }
        return true;
      });
    }
  }
}

// Runs the table with every action taking one unit. Returns the makespan, or -1 after adding the
// problem of who waits for what.
int64_t run_buffered(const Table& workers, const Dependencies& dependencies, Problems* problems) {
  std::vector<std::vector<int64_t>> ends(workers.size());
  for (size_t worker = 0; worker < workers.size(); ++worker) {
    ends[worker].reserve(workers[worker].size());
  }
  int64_t makespan = 0;
  for (const Position& position : dependencies.order()) {
    const auto worker = static_cast<size_t>(position.worker);
    int64_t start = ends[worker].empty() ? 0 : ends[worker].back();
    dependencies.for_each_need(
        workers[worker][static_cast<size_t>(position.index)], [&](const Dependencies::Edge& need) {
          start = std::max(start, ends[static_cast<size_t>(need.position.worker)]
                                      [static_cast<size_t>(need.position.index)]);
          return true;
        });
    ends[worker].push_back(start + 1);
    makespan = std::max(makespan, start + 1);
  }
  std::string stuck;
  for (size_t worker = 0; worker < workers.size(); ++worker) {
    if (ends[worker].size() == workers[worker].size()) continue;
    const Action& action = workers[worker][ends[worker].size()];
    for (const auto& need : dependencies.needs(action)) {
      const auto producer = static_cast<size_t>(need.position.worker);
      if (static_cast<size_t>(need.position.index) < ends[producer].size()) continue;
      stuck += "\n      worker " + std::to_string(worker) + " at " + action.to_text() +
               " waits for " + need.action.to_text() + " of worker " + std::to_string(producer);
    }
  }
  if (stuck.empty()) return makespan;
  problems->add("deadlock, even with buffered sends:" + stuck);
  return -1;
}

// A worker with n actions passes n + 1 exchanges: exchange k is before action k and after action k
// - 1. It posts what k - 1 sends and what k receives, and is over when each of these transfers has
// its other end posted.
void run_rendezvous(const Table& workers, const Dependencies& dependencies, Problems* problems) {
  struct End {
    size_t worker;
    size_t exchange;
    std::string what;
  };
  // The other ends of an exchange's transfers.
  const auto partners = [&](size_t worker, size_t exchange) {
    std::vector<End> ends;
    const std::vector<Action>& actions = workers[worker];
    if (exchange > 0) {
      const Action& sender = actions[exchange - 1];
      for (const auto& feed : dependencies.feeds(sender)) {
        if (feed.position.worker == static_cast<int32_t>(worker)) continue;
        ends.push_back({static_cast<size_t>(feed.position.worker),
                        static_cast<size_t>(feed.position.index),
                        "to send " + sender.to_text() + " to " + feed.action.to_text()});
      }
    }
    if (exchange < actions.size()) {
      const Action& receiver = actions[exchange];
      for (const auto& need : dependencies.needs(receiver)) {
        if (!need.route || need.position.worker == static_cast<int32_t>(worker)) continue;
        ends.push_back({static_cast<size_t>(need.position.worker),
                        static_cast<size_t>(need.position.index) + 1,
                        "to receive " + need.action.to_text() + " for " + receiver.to_text()});
      }
    }
    return ends;
  };
  // The exchange that each worker has posted; one more than the number of its actions when it is
  // done.
  std::vector<size_t> at(workers.size(), 0);
  // Alternating up and down: see Dependencies::order().
  bool up = true;
  for (bool moved = true; moved; up = !up) {
    moved = false;
    for (size_t k = 0; k < workers.size(); ++k) {
      const size_t worker = up ? k : workers.size() - 1 - k;
      while (at[worker] <= workers[worker].size()) {
        const std::vector<End> ends = partners(worker, at[worker]);
        if (!std::all_of(ends.begin(), ends.end(),
                         [&](const End& end) { return at[end.worker] >= end.exchange; })) {
          break;
        }
        ++at[worker];
        moved = true;
      }
    }
  }
  std::string stuck;
  for (size_t worker = 0; worker < workers.size(); ++worker) {
    if (at[worker] > workers[worker].size()) continue;
    for (const End& end : partners(worker, at[worker])) {
      if (at[end.worker] >= end.exchange) continue;
      stuck += "\n      worker " + std::to_string(worker) +
               (at[worker] == 0 ? ", at its start,"
                                : " after " + workers[worker][at[worker] - 1].to_text()) +
               " waits for worker " + std::to_string(end.worker) + " " + end.what;
    }
  }
  if (!stuck.empty()) {
    problems->add(
        "deadlock where a send waits for its receiver (with buffered sends it would run):" + stuck);
  }
}

std::vector<int64_t> peak_live(int64_t stages, int64_t micro_batches, const Table& workers) {
  const bool has_forward = std::any_of(workers.begin(), workers.end(), [](const auto& actions) {
    return std::any_of(actions.begin(), actions.end(),
                       [](const Action& action) { return action.kind == ActionKind::kForward; });
  });
  std::vector<int64_t> live(static_cast<size_t>(stages), has_forward ? 0 : micro_batches);
  std::vector<int64_t> peak = live;
  for (const std::vector<Action>& actions : workers) {
    for (const Action& action : actions) {
      const auto stage = static_cast<size_t>(action.stage);
      if (action.kind == ActionKind::kForward) peak[stage] = std::max(peak[stage], ++live[stage]);
      if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kWeightGradient)
        --live[stage];
    }
  }
  return peak;
}

}  // namespace

ScheduleFacts verify(int64_t stages, int64_t micro_batches, const Table& workers,
                     const Routes& routes, Sends sends) {
  if (routes.stages() != stages) {
    throw std::invalid_argument("Schedule::verify: the schedule has " + std::to_string(stages) +
                                " stages, but the routes are for " +
                                std::to_string(routes.stages()));
  }
  if (sends != Sends::kBuffered && sends != Sends::kRendezvous) {
    throw std::invalid_argument("Schedule::verify: sends must be kBuffered or kRendezvous, got " +
                                std::to_string(static_cast<int>(sends)));
  }
  const Dependencies dependencies(stages, micro_batches, workers, routes);
  Problems problems;
  check_completeness(stages, micro_batches, workers, dependencies, &problems);
  problems.throw_if_any();
  check_order(workers, dependencies, &problems);
  problems.throw_if_any();

  ScheduleFacts facts;
  facts.makespan = run_buffered(workers, dependencies, &problems);
  problems.throw_if_any();
  if (sends == Sends::kRendezvous) run_rendezvous(workers, dependencies, &problems);
  problems.throw_if_any();

  facts.peak_live = peak_live(stages, micro_batches, workers);
  int64_t actions = 0;
  for (const std::vector<Action>& list : workers) actions += static_cast<int64_t>(list.size());
  facts.bubble_ratio =
      1.0 - static_cast<double>(actions) /
                static_cast<double>(facts.makespan * static_cast<int64_t>(workers.size()));
  return facts;
}

}  // namespace gpipe::internal
