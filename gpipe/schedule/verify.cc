#include "gpipe/schedule/verify.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "gpipe/schedule/dependencies.h"
#include "text/counted.h"

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
    std::string text = "Schedule::verify: " + text::counted(count_, "problem") + ":";
    for (const std::string& problem : problems_) text += "\n  - " + problem;
    if (count_ > kMostTold) {
      text += "\n  - and " + std::to_string(count_ - kMostTold) + " more";
    }
    throw std::invalid_argument(text);
  }

 private:
  // The most problems that a message lists. One wrong action causes a few problems, but an empty
  // table of the largest size would cause 2^24: more than a user reads, and more memory than the
  // table.
  static constexpr int64_t kMostTold = 100;

  std::vector<std::string> problems_;
  int64_t count_ = 0;
};

std::string place(size_t worker, size_t index) {
  return "worker " + std::to_string(worker) + " at position " + std::to_string(index);
}

// Checks that what goes to the host comes back: the part of group 1 that is about offloads.
void check_pairs(int64_t stages, int64_t micro_batches, const Dependencies& dependencies,
                 Problems* problems) {
  for (int32_t stage = 0; stage < stages; ++stage) {
    for (int32_t i = 0; i < micro_batches; ++i) {
      const Action offload{ActionKind::kOffload, stage, i};
      const Action reload{ActionKind::kReload, stage, i};
      const bool out = static_cast<bool>(dependencies.find(offload));
      if (out == static_cast<bool>(dependencies.find(reload))) continue;
      problems->add((out ? reload : offload).to_text() + " is missing, though " +
                    (out ? offload : reload).to_text() + " is there");
    }
  }
}

// Makes the checks of group 1 of the header: every action once.
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
      if (computes(action.kind)) {
        (action.kind == ActionKind::kForward ? has_forward : has_backward) = true;
      }
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
  if (dependencies.has_offloads()) {
    if (has_forward != has_backward) {
      problems->add(std::string("there are offloads or reloads, but no ") +
                    (has_forward ? "backwards" : "forwards") +
                    ": they are for what a cell keeps from one to the other");
    }
    check_pairs(stages, micro_batches, dependencies, problems);
  }
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

// Checks that a reload comes before the cell's next part, that no part comes between the offload
// and its reload, and that one comes after both. The rest of their order is in the dependencies.
void check_reload(const Action& reload, const Dependencies& dependencies, Problems* problems) {
  const auto index = [&](ActionKind kind) {
    return dependencies.find({kind, reload.stage, reload.micro_batch}).index;
  };
  const int32_t out = index(ActionKind::kOffload);
  const int32_t back = index(ActionKind::kReload);
  for (const ActionKind kind :
       {ActionKind::kBackward, ActionKind::kInputGradient, ActionKind::kWeightGradient}) {
    const int32_t part = index(kind);
    if (part < 0 || part > back) continue;
    const Action action{kind, reload.stage, reload.micro_batch};
    if (kind != ActionKind::kInputGradient && part < out) {
      const Action offload{ActionKind::kOffload, reload.stage, reload.micro_batch};
      problems->add(offload.to_text() + " (position " + std::to_string(out) + ") comes after " +
                    action.to_text() + " (position " + std::to_string(part) +
                    "), the last that needs what it would take");
      return;
    }
    if (part > out) {
      problems->add(reload.to_text() + " (position " + std::to_string(back) + ") comes after " +
                    action.to_text() + " (position " + std::to_string(part) +
                    "), which needs what it brings back");
      return;
    }
  }
}

// Makes the checks of group 2 of the header: the order within a worker.
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
      if (workers[worker][index].kind == ActionKind::kReload) {
        check_reload(workers[worker][index], dependencies, problems);
      }
    }
  }
}

// The time that an action takes in ScheduleFacts.
int64_t units(const Action& action) { return computes(action.kind) ? 1 : 0; }

// Per worker, the times at which its actions end.
using Ends = std::vector<std::vector<int64_t>>;

// Runs the table with every action that computes taking one unit. If it does not run to its end,
// adds a problem that says which worker waits for which.
Ends run_buffered(const Table& workers, const Dependencies& dependencies, Problems* problems) {
  Ends ends(workers.size());
  for (size_t worker = 0; worker < workers.size(); ++worker) {
    ends[worker].reserve(workers[worker].size());
  }
  for (const Position& position : dependencies.order()) {
    const auto worker = static_cast<size_t>(position.worker);
    int64_t start = ends[worker].empty() ? 0 : ends[worker].back();
    dependencies.for_each_need(
        workers[worker][static_cast<size_t>(position.index)], [&](const Dependencies::Edge& need) {
          start = std::max(start, ends[static_cast<size_t>(need.position.worker)]
                                      [static_cast<size_t>(need.position.index)]);
          return true;
        });
    ends[worker].push_back(start + units(workers[worker][static_cast<size_t>(position.index)]));
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
  if (!stuck.empty()) problems->add("deadlock, even with buffered sends:" + stuck);
  return ends;
}

// Calls step(worker), which lets the worker go on by one and returns whether it could, until no
// worker can. The sweeps over the workers go up and down in turn, for the reason that
// Dependencies::order() gives.
template <typename Step>
void run_all(size_t workers, const Step& step) {
  bool up = true;
  for (bool moved = true; moved; up = !up) {
    moved = false;
    for (size_t k = 0; k < workers; ++k) {
      while (step(up ? k : workers - 1 - k)) moved = true;
    }
  }
}

// A worker with n actions passes n + 1 exchanges: exchange k is between the actions k - 1 and k. In
// exchange k the worker posts the sends of action k - 1 and the receives of action k. The exchange
// ends when the other end of each of these transfers has been posted.
void run_rendezvous(const Table& workers, const Dependencies& dependencies, Problems* problems) {
  struct End {
    size_t worker;
    size_t exchange;
    std::string what;
  };
  // The other ends of the transfers that belong to the worker's exchange.
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
  // Per worker, the exchange that it has posted. If the worker is done, the number is one more than
  // that of its actions.
  std::vector<size_t> reached(workers.size(), 0);
  run_all(workers.size(), [&](size_t worker) {
    if (reached[worker] > workers[worker].size()) return false;
    const std::vector<End> ends = partners(worker, reached[worker]);
    const bool passes = std::all_of(ends.begin(), ends.end(), [&](const End& end) {
      return reached[end.worker] >= end.exchange;
    });
    if (passes) ++reached[worker];
    return passes;
  });
  std::string stuck;
  for (size_t worker = 0; worker < workers.size(); ++worker) {
    if (reached[worker] > workers[worker].size()) continue;
    for (const End& end : partners(worker, reached[worker])) {
      if (reached[end.worker] >= end.exchange) continue;
      stuck += "\n      worker " + std::to_string(worker) +
               (reached[worker] == 0 ? ", at its start,"
                                     : " after " + workers[worker][reached[worker] - 1].to_text()) +
               " waits for worker " + std::to_string(end.worker) + " " + end.what;
    }
  }
  if (!stuck.empty()) {
    problems->add(
        "deadlock where a send waits for its receiver (with buffered sends it would run):" + stuck);
  }
}

// Finds ScheduleFacts::receives_ahead. The rule is that of run_rendezvous(), except that the
// receives of a channel are posted as many exchanges early as the channel needs. At first that
// number is 0 for all channels. Whenever no worker can go on, the send that needs the least
// increase of its channel's number gets it. Receives that were posted stay posted, so no action
// that has run is undone.
class PostedAhead {
 public:
  PostedAhead(const Table& workers, const Dependencies& dependencies)
      : workers_(workers),
        dependencies_(dependencies),
        sends_(workers.size()),
        reached_(workers.size(), 0) {
    for (size_t worker = 0; worker < workers.size(); ++worker) {
      for (const Action& action : workers[worker]) {
        std::vector<Sent>& sent = sends_[worker].emplace_back();
        for (const auto& feed : dependencies.feeds(action)) {
          const auto to = static_cast<size_t>(feed.position.worker);
          if (to == worker) continue;
          Channel& channel = channels_[{worker, to}];
          sent.push_back({&channel, to, channel.needed.size()});
          channel.needed.push_back(feed.position.index);
        }
      }
    }
    for (auto& [ends, channel] : channels_) {
      channel.latest = channel.needed;
      for (size_t value = channel.latest.size(); value-- > 1;) {
        channel.latest[value - 1] = std::min(channel.latest[value - 1], channel.latest[value]);
      }
    }
  }

  std::vector<ReceivesAhead> run() {
    do {
      run_all(workers_.size(), [&](size_t worker) {
        if (reached_[worker] > static_cast<int32_t>(workers_[worker].size())) return false;
        if (!passes(worker)) return false;
        ++reached_[worker];
        return true;
      });
    } while (increase_least());
    std::vector<ReceivesAhead> result;
    for (const auto& [ends, channel] : channels_) {
      int32_t most = 0;
      for (size_t value = 0; value < channel.needed.size(); ++value) {
        const int32_t posted = std::max(channel.latest[value] - channel.ahead, 0);
        most = std::max(most, channel.needed[value] - posted);
      }
      result.push_back({static_cast<int32_t>(ends.first), static_cast<int32_t>(ends.second), most});
    }
    return result;
  }

 private:
  struct Channel {
    std::vector<int32_t> needed;  // per value, in the sender's order: the index of the consumer
    // Per value: the index by which its receive must be posted, so that receives keep their order.
    std::vector<int32_t> latest;
    int32_t ahead = 0;
  };
  struct Sent {
    Channel* channel;
    size_t to_worker;
    size_t value;
  };

  // How much further ahead the receives of the value's channel must be posted, so that the send of
  // the value can end.
  int32_t missing(const Sent& sent) const {
    return sent.channel->latest[sent.value] - sent.channel->ahead - reached_[sent.to_worker];
  }

  bool passes(size_t worker) const {
    const auto exchange = static_cast<size_t>(reached_[worker]);
    if (exchange > 0) {
      for (const Sent& sent : sends_[worker][exchange - 1]) {
        if (missing(sent) > 0) return false;
      }
    }
    return exchange == workers_[worker].size() ||
           dependencies_.for_each_need(
               workers_[worker][exchange], [&](const Dependencies::Edge& need) {
                 return need.position.worker == static_cast<int32_t>(worker) ||
                        reached_[static_cast<size_t>(need.position.worker)] > need.position.index;
               });
  }

  // Returns false if all workers are done: the buffered run has shown that they end.
  bool increase_least() {
    const Sent* least = nullptr;
    for (size_t worker = 0; worker < workers_.size(); ++worker) {
      const auto exchange = static_cast<size_t>(reached_[worker]);
      if (exchange == 0 || exchange > workers_[worker].size()) continue;
      for (const Sent& sent : sends_[worker][exchange - 1]) {
        if (missing(sent) <= 0 || (least != nullptr && missing(sent) >= missing(*least))) continue;
        least = &sent;
      }
    }
    if (least == nullptr) return false;
    least->channel->ahead += missing(*least);
    return true;
  }

  const Table& workers_;
  const Dependencies& dependencies_;
  std::map<std::pair<size_t, size_t>, Channel> channels_;
  // Per worker and action, the values that the action sends to other workers.
  std::vector<std::vector<std::vector<Sent>>> sends_;
  std::vector<int32_t> reached_;  // the exchange that each worker has posted
};

// Makes the check of group 4 of the header, and returns ScheduleFacts::receives_ahead.
std::vector<ReceivesAhead> check_sends(const Table& workers, const Dependencies& dependencies,
                                       Sends sends) {
  Problems problems;
  if (sends == Sends::kRendezvous) run_rendezvous(workers, dependencies, &problems);
  problems.throw_if_any();
  if (sends != Sends::kPostedAhead) return {};
  return PostedAhead(workers, dependencies).run();
}

// Counts ScheduleFacts::peak_live and worker_peak_live.
void count_live(int64_t micro_batches, const Table& workers, ScheduleFacts* facts) {
  const bool has_forward = std::any_of(workers.begin(), workers.end(), [](const auto& actions) {
    return std::any_of(actions.begin(), actions.end(),
                       [](const Action& action) { return action.kind == ActionKind::kForward; });
  });
  std::vector<int64_t> live(facts->peak_live.size(), has_forward ? 0 : micro_batches);
  facts->peak_live = live;
  for (size_t worker = 0; worker < workers.size(); ++worker) {
    int64_t sum = 0;
    if (!has_forward) {
      std::vector<bool> seen(live.size(), false);
      for (const Action& action : workers[worker]) {
        if (!seen[static_cast<size_t>(action.stage)]) sum += micro_batches;
        seen[static_cast<size_t>(action.stage)] = true;
      }
    }
    int64_t& worker_peak = facts->worker_peak_live[worker];
    worker_peak = sum;
    for (const Action& action : workers[worker]) {
      const auto stage = static_cast<size_t>(action.stage);
      if (action.kind == ActionKind::kForward || action.kind == ActionKind::kReload) {
        facts->peak_live[stage] = std::max(facts->peak_live[stage], ++live[stage]);
        worker_peak = std::max(worker_peak, ++sum);
      } else if (action.kind != ActionKind::kInputGradient) {
        --live[stage];
        --sum;
      }
    }
  }
}

// Computes how long stages and workers are alive and how much of that time they are idle, the
// makespan, and the bubble.
void count_time(const Table& workers, const Ends& ends, ScheduleFacts* facts) {
  std::vector<int64_t> actions(facts->alive.size(), 0);
  std::vector<int64_t> first(facts->alive.size(), 0);
  int64_t all = 0;
  for (size_t worker = 0; worker < workers.size(); ++worker) {
    for (size_t index = 0; index < workers[worker].size(); ++index) {
      const auto stage = static_cast<size_t>(workers[worker][index].stage);
      const int64_t end = ends[worker][index];
      if (!computes(workers[worker][index].kind)) continue;
      if (actions[stage]++ == 0) first[stage] = end - 1;
      facts->alive[stage] = end - first[stage];
      facts->makespan = std::max(facts->makespan, end);
    }
    if (workers[worker].empty()) continue;
    const auto count = std::count_if(workers[worker].begin(), workers[worker].end(),
                                     [](const Action& action) { return computes(action.kind); });
    // A worker's first action computes: an offload comes after its forward.
    facts->worker_alive[worker] = ends[worker].back() - (ends[worker].front() - 1);
    facts->worker_idle[worker] = facts->worker_alive[worker] - count;
    all += count;
  }
  for (size_t stage = 0; stage < actions.size(); ++stage) {
    facts->idle[stage] = facts->alive[stage] - actions[stage];
  }
  facts->bubble_ratio =
      1.0 - static_cast<double>(all) /
                static_cast<double>(facts->makespan * static_cast<int64_t>(workers.size()));
}

// Computes ScheduleFacts::ascending.
bool ascends(int64_t stages, const Table& workers) {
  struct Last {
    int32_t forward = -1;
    int32_t first_part = -1;
    int32_t second_part = -1;
  };
  const auto rises = [](int32_t* last, int32_t micro_batch) {
    const bool rise = *last < micro_batch;
    *last = micro_batch;
    return rise;
  };
  std::vector<Last> stage_last(static_cast<size_t>(stages));
  for (const std::vector<Action>& actions : workers) {
    for (const Action& action : actions) {
      Last& last = stage_last[static_cast<size_t>(action.stage)];
      const int32_t i = action.micro_batch;
      const bool whole = action.kind == ActionKind::kBackward;
      if (action.kind == ActionKind::kForward && !rises(&last.forward, i)) return false;
      if ((whole || action.kind == ActionKind::kInputGradient) && !rises(&last.first_part, i))
        return false;
      if ((whole || action.kind == ActionKind::kWeightGradient) && !rises(&last.second_part, i))
        return false;
    }
  }
  return true;
}

void check_stages(int64_t stages, const Routes& routes) {
  if (routes.stages() == stages) return;
  throw std::invalid_argument("Schedule::verify: the schedule has " + std::to_string(stages) +
                              " stages, but the routes are for " + std::to_string(routes.stages()));
}

// Makes the checks of groups 1 to 3 of the header. Returns when the actions end with buffered
// sends.
Ends checked_ends(int64_t stages, int64_t micro_batches, const Table& workers,
                  const Dependencies& dependencies) {
  Problems problems;
  check_completeness(stages, micro_batches, workers, dependencies, &problems);
  problems.throw_if_any();
  check_order(workers, dependencies, &problems);
  problems.throw_if_any();
  Ends ends = run_buffered(workers, dependencies, &problems);
  problems.throw_if_any();
  return ends;
}

}  // namespace

void check_buffered(int64_t stages, int64_t micro_batches, const Table& workers,
                    const Routes& routes, const Dependencies& dependencies) {
  check_stages(stages, routes);
  checked_ends(stages, micro_batches, workers, dependencies);
}

ScheduleFacts verify(int64_t stages, int64_t micro_batches, const Table& workers,
                     const Routes& routes, Sends sends) {
  check_stages(stages, routes);
  if (sends != Sends::kBuffered && sends != Sends::kRendezvous && sends != Sends::kPostedAhead) {
    throw std::invalid_argument(
        "Schedule::verify: sends must be kBuffered, kRendezvous or kPostedAhead, got " +
        std::to_string(static_cast<int>(sends)));
  }
  const Dependencies dependencies(stages, micro_batches, workers, routes);
  const Ends ends = checked_ends(stages, micro_batches, workers, dependencies);
  ScheduleFacts facts;
  if (dependencies.has_offloads()) {  // they send and receive nothing, so they end no exchange
    Table computing = workers;
    for (std::vector<Action>& actions : computing) {
      std::erase_if(actions, [](const Action& action) { return !computes(action.kind); });
    }
    facts.receives_ahead =
        check_sends(computing, {stages, micro_batches, computing, routes}, sends);
  } else {
    facts.receives_ahead = check_sends(workers, dependencies, sends);
  }
  for (auto* of_stages : {&facts.peak_live, &facts.alive, &facts.idle}) {
    of_stages->resize(static_cast<size_t>(stages));
  }
  for (auto* of_workers : {&facts.worker_peak_live, &facts.worker_alive, &facts.worker_idle}) {
    of_workers->resize(workers.size());
  }
  count_live(micro_batches, workers, &facts);
  count_time(workers, ends, &facts);
  facts.ascending = ascends(stages, workers);
  return facts;
}

}  // namespace gpipe::internal
