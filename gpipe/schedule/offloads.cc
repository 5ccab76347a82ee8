#include "gpipe/schedule/offloads.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace gpipe {
namespace {

// The share by which sums of the same bytes or times may differ, and by which times are taken to be
// the same.
constexpr double kRounding = 1e-12;
constexpr double kSameTime = 1e-9;

// Links are taken for so many times as fast as they are.
constexpr double kFaster[] = {
    0.125, 0.25, 0.5, 0.75, 1.0,  1.1,  1.25,  1.5,    2.0,
    3.0,   4.0,  8.0, 16.0, 32.0, 64.0, 256.0, 1024.0, std::numeric_limits<double>::infinity()};
// Once a step is too long, tables for links that are faster than this are not made.
constexpr double kFastest = 16.0;

// What a cell holds between two of its parts.
struct Gap {
  Action after;  // the part before it
  size_t from = 0;
  size_t to = 0;  // the indices of the parts in the worker's list
  double bytes = 0.0;
  double more = 0.0;  // than before the part `after`, if that is the first half of a backward
};

// Where a gap's memory goes and comes back: each before the action with this index.
struct Places {
  size_t offload = 0;
  size_t reload = 0;
};

// The offloads of one worker, chosen beside the times of a run without any.
class Worker {
 public:
  // `faster`: the copies are taken for so many times as fast as they are. `most` as in
  // with_offloads().
  Worker(const std::vector<TimedAction>& timeline, const OffloadCosts& costs, double faster,
         double makespan, const std::vector<int64_t>& most)
      : timeline_(timeline),
        most_(most),
        to_host_(costs.to_host * faster),
        to_device_(costs.to_device * faster),
        rounding_(kRounding * makespan) {
    std::map<std::pair<int32_t, int32_t>, size_t> open;  // by cell, the gap that has not ended
    for (size_t index = 0; index < timeline.size(); ++index) {
      const Action& action = timeline[index].action;
      const auto found = open.find({action.stage, action.micro_batch});
      double before = 0.0;
      if (found != open.end()) {
        gaps_[found->second].to = index;
        before = gaps_[found->second].bytes;
        open.erase(found);
      }
      if (action.kind != ActionKind::kForward && action.kind != ActionKind::kInputGradient)
        continue;
      open[{action.stage, action.micro_batch}] = gaps_.size();
      const double bytes = costs.bytes(action);
      gaps_.push_back({action, index, 0, bytes, std::max(bytes - before, 0.0)});
    }
    // A gap of a half of a schedule has no end.
    for (const auto& [cell, gap] : open) gaps_[gap].to = timeline.size();
    choose();
  }

  // What its cells hold at once with the chosen offloads.
  double peak() const { return peak_; }

  // The worker's list with the chosen offloads.
  std::vector<Action> actions() const {
    std::vector<std::vector<Action>> before(timeline_.size());
    const auto moves = [&](ActionKind kind, size_t Places::*place) {
      for (const auto& [gap, places] : chosen_) {
        const Action& after = gaps_[gap].after;
        before[places.*place].push_back({kind, after.stage, after.micro_batch});
      }
    };
    moves(ActionKind::kOffload, &Places::offload);
    moves(ActionKind::kReload, &Places::reload);
    std::vector<Action> actions;
    for (size_t index = 0; index < timeline_.size(); ++index) {
      actions.insert(actions.end(), before[index].begin(), before[index].end());
      actions.push_back(timeline_[index].action);
    }
    return actions;
  }

 private:
  using Chosen = std::vector<std::pair<size_t, Places>>;  // by the ends of the gaps, ascending

  // Where these gaps' memory may go and come back without a wait, or none. The memory goes as soon
  // as the copy is done, and comes back as late as it may.
  std::optional<Chosen> place(const std::set<size_t>& gaps) const {
    Chosen chosen;
    double free = 0.0;
    // [index] when the offloads before that action have ended.
    std::vector<double> offloaded(timeline_.size(), 0.0);
    for (const size_t gap : gaps) {  // in the order of the parts before them
      const Gap& each = gaps_[gap];
      free = std::max(free, timeline_[each.from].end) + each.bytes / to_host_;
      size_t place = each.from + 1;
      while (place < each.to && timeline_[place].start < free) ++place;
      if (place >= each.to) return std::nullopt;
      offloaded[place] = free;
      chosen.push_back({gap, {place, 0}});
    }
    std::sort(chosen.begin(), chosen.end(),
              [&](const auto& a, const auto& b) { return gaps_[a.first].to < gaps_[b.first].to; });
    double next = timeline_.back().end;  // when the next copy must begin
    for (auto each = chosen.rbegin(); each != chosen.rend(); ++each) {
      const Gap& gap = gaps_[each->first];
      next = std::min(next, timeline_[gap.to].start) - gap.bytes / to_device_;
      size_t place = gap.to;
      // A reload runs when the worker is done with the action before.
      const auto runs = [&] { return std::max(timeline_[place - 1].end, offloaded[place]); };
      while (place > each->second.offload && runs() > next + rounding_) --place;
      if (place <= each->second.offload) return std::nullopt;
      each->second.reload = place;
    }
    return chosen;
  }

  // [index] what is held while the action runs.
  std::vector<double> held(const Chosen& chosen) const {
    std::vector<double> change(timeline_.size() + 1, 0.0);
    const auto hold = [&](size_t begin, size_t end, double bytes) {
      change[begin] += bytes;
      change[std::min(end, timeline_.size())] -= bytes;
    };
    for (const Gap& gap : gaps_) {
      if (gap.after.kind == ActionKind::kForward) {
        hold(gap.from, gap.to + 1, gap.bytes);
        continue;
      }
      // What waits between halves is there when the first half is over, before anything else goes.
      hold(gap.from, gap.from + 1, gap.more);
      hold(gap.from + 1, gap.to + 1, gap.bytes);
    }
    for (const auto& [gap, places] : chosen) hold(places.offload, places.reload, -gaps_[gap].bytes);
    change.pop_back();
    for (size_t index = 1; index < change.size(); ++index) change[index] += change[index - 1];
    return change;
  }

  // Whether no stage has more cells away at once than it may.
  bool allowed(const Chosen& chosen) const {
    if (most_.empty()) return true;
    std::map<int32_t, std::vector<int64_t>> change;  // [index], by stage
    for (const auto& [gap, places] : chosen) {
      std::vector<int64_t>& of_stage = change[gaps_[gap].after.stage];
      of_stage.resize(timeline_.size() + 1);
      ++of_stage[places.offload];
      --of_stage[places.reload + 1];  // at one place all go before any comes back
    }
    return std::all_of(change.begin(), change.end(), [&](const auto& stage) {
      int64_t away = 0;
      return std::all_of(stage.second.begin(), stage.second.end(), [&](int64_t more) {
        return (away += more) <= most_[static_cast<size_t>(stage.first)];
      });
    });
  }

  static double peak(const std::vector<double>& held) {
    return *std::max_element(held.begin(), held.end());
  }

  void choose() {
    if (gaps_.empty()) return;
    std::set<size_t> taken;
    std::vector<double> now = held({});
    while (add_one(taken, now)) {
    }
    // Cells that went before others made the same peak impossible stay. Where one stays, the copies
    // of others have other places, so that more may be able to stay.
    const double least = peak(now) * (1.0 + kRounding);
    for (bool changed = true; changed;) {
      changed = false;
      for (const size_t gap : std::set<size_t>(taken)) {
        taken.erase(gap);
        const std::optional<Chosen> without = place(taken);
        if (without && allowed(*without) && peak(held(*without)) <= least) {
          changed = true;
        } else {
          taken.insert(gap);
        }
      }
    }
    chosen_ = *place(taken);
    // Other places may also be worse. So at last cells stay while the others' places are kept.
    for (size_t k = chosen_.size(); k-- > 0;) {
      Chosen without = chosen_;
      without.erase(without.begin() + static_cast<std::ptrdiff_t>(k));
      if (peak(held(without)) <= least) chosen_ = std::move(without);
    }
    peak_ = peak(held(chosen_));
  }

  // Takes one more gap that lowers the first peak, and returns whether there is one.
  bool add_one(std::set<size_t>& taken, std::vector<double>& now) {
    const auto first = static_cast<size_t>(std::max_element(now.begin(), now.end()) - now.begin());
    std::vector<size_t> there;
    for (size_t gap = 0; gap < gaps_.size(); ++gap) {
      const Gap& each = gaps_[gap];
      if (each.to == timeline_.size()) continue;  // of a half of a schedule
      if (each.from >= first || first >= each.to || each.bytes == 0.0) continue;
      const bool cell_taken = std::any_of(taken.begin(), taken.end(), [&](size_t other) {
        return gaps_[other].after.stage == each.after.stage &&
               gaps_[other].after.micro_batch == each.after.micro_batch;
      });
      if (!cell_taken) there.push_back(gap);
    }
    std::stable_sort(there.begin(), there.end(),
                     [&](size_t a, size_t b) { return gaps_[a].to > gaps_[b].to; });
    for (const size_t gap : there) {
      taken.insert(gap);
      const std::optional<Chosen> chosen = place(taken);
      if (chosen && allowed(*chosen)) {
        std::vector<double> then = held(*chosen);
        if (then[first] < now[first] && peak(then) <= peak(now)) {
          now = std::move(then);
          return true;
        }
      }
      taken.erase(gap);
    }
    return false;
  }

  const std::vector<TimedAction>& timeline_;
  const std::vector<int64_t>& most_;
  const double to_host_;
  const double to_device_;
  const double rounding_;  // at least the error of a sum of times
  std::vector<Gap> gaps_;  // in the order of the parts before them
  Chosen chosen_;
  double peak_ = 0.0;
};

// Whether no action that computes ends later than without offloads, but for errors of sums.
bool same_times(const Simulation& without, const Simulation& with) {
  const double rounding = kSameTime * without.makespan;
  for (size_t worker = 0; worker < without.workers.size(); ++worker) {
    auto expected = without.workers[worker].begin();
    for (const TimedAction& timed : with.workers[worker]) {
      if (!computes(timed.action.kind)) continue;
      if (timed.end > expected->end + rounding) return false;
      ++expected;
    }
  }
  return true;
}

// Whether `a` is less than `b` by more than errors of sums.
bool below(double a, double b, double rounding = kRounding) { return a < b * (1.0 - rounding); }

struct Choice {
  Schedule schedule;
  double peak = 0.0;  // the highest of the workers'
  double time = 0.0;
  double all = 0.0;  // the sum of the peaks
};

Choice choice(const Schedule& schedule, const Simulation& run, const std::vector<double>& beside) {
  Choice result{schedule, 0.0, run.makespan, 0.0};
  for (size_t worker = 0; worker < run.peak.size(); ++worker) {
    const double peak = beside[worker] + run.peak[worker];
    result.peak = std::max(result.peak, peak);
    result.all += peak;
  }
  return result;
}

// Those that no other one is better than: the lowest peak first, then the shorter times.
std::vector<Choice> best_of(std::vector<Choice> found) {
  std::stable_sort(found.begin(), found.end(),
                   [](const Choice& a, const Choice& b) { return a.peak < b.peak; });
  std::vector<Choice> best;
  for (Choice& each : found) {
    if (!best.empty()) {
      const Choice& last = best.back();
      const bool as_low = !below(last.peak, each.peak);
      const bool as_fast = !below(last.time, each.time, kSameTime);
      const bool faster = below(each.time, last.time, kSameTime);
      if (!faster && !(as_low && as_fast && below(each.all, last.all))) continue;
      if (as_low) best.pop_back();
    }
    best.push_back(std::move(each));
  }
  return best;
}

void check(const Schedule& schedule, const SimulateOptions& costs, double more_time,
           const std::vector<int64_t>& most) {
  if (!costs.offload.bytes) {
    throw std::invalid_argument(
        "with_offloads: OffloadCosts::bytes is empty; give what a cell holds after an action");
  }
  if (!(more_time >= 0.0) || !std::isfinite(more_time)) {
    std::ostringstream text;
    text << "with_offloads: more_time must be finite and at least 0, got " << more_time;
    throw std::invalid_argument(text.str());
  }
  if (!most.empty() && static_cast<int64_t>(most.size()) != schedule.stages()) {
    throw std::invalid_argument("with_offloads: `most` has " + std::to_string(most.size()) +
                                " numbers, but the schedule has " +
                                std::to_string(schedule.stages()) +
                                " stages; give one for each, or none");
  }
}

// [worker] the index of the speed: the slowest with which the worker's peak is at most the highest
// of all workers' with the last speed. `workers`: [speed][worker].
std::vector<size_t> slowest_speeds(const std::vector<std::vector<Worker>>& workers,
                                   const std::vector<double>& beside) {
  double level = 0.0;
  for (size_t w = 0; w < beside.size(); ++w) {
    level = std::max(level, beside[w] + workers.back()[w].peak());
  }
  std::vector<size_t> speeds(beside.size(), 0);
  for (size_t w = 0; w < beside.size(); ++w) {
    while (below(level, beside[w] + workers[speeds[w]][w].peak())) ++speeds[w];
  }
  return speeds;
}

}  // namespace

Schedule without_offloads(const Schedule& schedule) {
  return schedule.only({ActionKind::kForward, ActionKind::kBackward, ActionKind::kInputGradient,
                        ActionKind::kWeightGradient});
}

std::vector<Schedule> internal::offload_choices(const Schedule& schedule, const Routes& routes,
                                                const SimulateOptions& costs, double more_time,
                                                const std::vector<int64_t>& most,
                                                std::vector<double> beside) {
  check(schedule, costs, more_time, most);
  const Schedule plain = without_offloads(schedule);
  const Simulation without = simulate(plain, routes, costs);
  beside.resize(without.workers.size());
  std::vector<Choice> found = {choice(plain, without, beside)};
  std::vector<std::vector<Worker>> workers;   // [speed][worker]
  std::map<std::vector<size_t>, bool> tried;  // by [worker] its speed, what `allows` gave
  // Whether the table with these speeds takes no more time than allowed.
  const auto allows = [&](const std::vector<size_t>& speeds) {
    const auto [known, added] = tried.try_emplace(speeds, false);
    if (!added) return known->second;
    std::vector<std::vector<Action>> table;
    for (size_t w = 0; w < speeds.size(); ++w) table.push_back(workers[speeds[w]][w].actions());
    const Schedule with = Schedule::create(plain.stages(), plain.micro_batches(), std::move(table));
    const Simulation run = simulate(with, routes, costs);
    known->second = same_times(without, run) ||
                    (more_time > 0.0 && run.makespan <= (1.0 + more_time) * without.makespan);
    if (known->second) found.push_back(choice(with, run, beside));
    return known->second;
  };
  // Copies that are taken for faster than they are make actions wait, but not for longer than is
  // allowed: the simulation says so. Where several workers share a link, each is planned as if it
  // had the link, or a part of it, for itself, and the simulation says whether that holds.
  bool allowed = true;
  for (const double faster : kFaster) {
    if (faster < 1.0 && costs.offload.link.empty()) continue;
    if (faster > 1.0 && more_time == 0.0) break;
    if (faster > kFastest && !allowed) break;
    std::vector<Worker>& all = workers.emplace_back();
    for (const std::vector<TimedAction>& timeline : without.workers) {
      all.emplace_back(timeline, costs.offload, faster, without.makespan, most);
    }
    const bool same = allows(std::vector<size_t>(all.size(), workers.size() - 1));
    // Only the worker with the highest peak has to be as low as that.
    allowed = allows(slowest_speeds(workers, beside)) || same;
  }
  std::vector<Schedule> result;
  for (Choice& each : best_of(std::move(found))) {
    if (each.schedule != plain) result.push_back(std::move(each.schedule));
  }
  return result;
}

Schedule with_offloads(const Schedule& schedule, const Routes& routes, const SimulateOptions& costs,
                       double more_time, const std::vector<int64_t>& most) {
  const std::vector<Schedule> choices =
      internal::offload_choices(schedule, routes, costs, more_time, most);
  return choices.empty() ? without_offloads(schedule) : choices.front();
}

}  // namespace gpipe
