#include "gpipe/schedule/search/workload.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace gpipe::internal {
namespace {

constexpr auto kF = static_cast<size_t>(ActionKind::kForward);
constexpr auto kB = static_cast<size_t>(ActionKind::kBackward);
constexpr auto kI = static_cast<size_t>(ActionKind::kInputGradient);
constexpr auto kW = static_cast<size_t>(ActionKind::kWeightGradient);

// Finds the micro-batches of the actions in an order by counting.
class Counter {
 public:
  explicit Counter(int64_t stages) : counts_(static_cast<size_t>(stages), {0, 0, 0}) {}

  // Returns the micro-batch of an action that follows those that were counted before.
  int32_t next(Token each) {
    auto& [forwards, firsts, seconds] = counts_[static_cast<size_t>(stage_of(each))];
    if (kind_of(each) == ActionKind::kForward) return forwards++;
    if (kind_of(each) == ActionKind::kWeightGradient) return seconds++;
    if (kind_of(each) == ActionKind::kBackward) ++seconds;
    return firsts++;
  }

 private:
  std::vector<std::array<int32_t, 3>> counts_;  // per stage
};

}  // namespace

Workload Workload::uniform(const Placement& placement, int64_t micro_batches, const StageCost& cost,
                           double transfer, double limit) {
  Workload workload;
  workload.stages = static_cast<int32_t>(placement.stages());
  workload.workers = static_cast<int32_t>(placement.workers());
  workload.micro_batches = static_cast<int32_t>(micro_batches);
  const auto stages = static_cast<size_t>(workload.stages);
  workload.stages_of.resize(static_cast<size_t>(workload.workers));
  for (int32_t stage = 0; stage < workload.stages; ++stage) {
    const auto worker = static_cast<int32_t>(placement.worker_of(stage));
    workload.worker_of.push_back(worker);
    workload.stages_of[static_cast<size_t>(worker)].push_back(stage);
  }
  workload.cost.assign(stages,
                       {cost.forward, cost.backward, cost.input_gradient, cost.weight_gradient});
  workload.activation_takes.assign(stages, 0.0);
  workload.gradient_takes.assign(stages, 0.0);
  for (size_t s = 0; s + 1 < stages; ++s) {
    if (workload.worker_of[s] == workload.worker_of[s + 1]) continue;
    workload.activation_takes[s + 1] = transfer;
    workload.gradient_takes[s] = transfer;
  }
  workload.held.assign(stages, 1.0);
  workload.waiting.assign(stages, 1.0);
  workload.limit.assign(static_cast<size_t>(workload.workers), limit);
  return workload;
}

void Workload::add_skip(int32_t from, int32_t to, double activation_takes, double gradient_takes) {
  skips_into.resize(static_cast<size_t>(stages));
  skips_from.resize(static_cast<size_t>(stages));
  skips_into[static_cast<size_t>(to)].push_back({from, activation_takes, gradient_takes});
  skips_from[static_cast<size_t>(from)].push_back({to, activation_takes, gradient_takes});
}

double Workload::mean_cost() const {
  double sum = 0.0;
  for (const auto& each : cost) sum += each[kF] + each[kI] + each[kW];
  sum /= 3.0 * static_cast<double>(stages);
  return sum > 0.0 ? sum : 1.0;
}

Workload Workload::scaled(double factor) const {
  Workload result = *this;
  for (auto& each : result.cost) {
    for (double& time : each) time *= factor;
  }
  for (double& time : result.activation_takes) time *= factor;
  for (double& time : result.gradient_takes) time *= factor;
  for (auto* skips : {&result.skips_into, &result.skips_from}) {
    for (std::vector<Skip>& of_stage : *skips) {
      for (Skip& skip : of_stage) {
        skip.activation_takes *= factor;
        skip.gradient_takes *= factor;
      }
    }
  }
  return result;
}

bool Workload::whole_differs() const {
  return std::any_of(cost.begin(), cost.end(), [](const auto& each) {
    const double halves = each[kI] + each[kW];
    return std::abs(each[kB] - halves) > 1e-9 * halves;
  });
}

Schedule to_schedule(const Order& order, int64_t stages, int64_t micro_batches) {
  std::vector<std::vector<Action>> table(order.size());
  Counter counter(stages);
  for (size_t worker = 0; worker < order.size(); ++worker) {
    table[worker].reserve(order[worker].size());
    for (const Token each : order[worker]) {
      table[worker].push_back({kind_of(each), stage_of(each), counter.next(each)});
    }
  }
  return Schedule::create(stages, micro_batches, std::move(table));
}

int64_t count_of(const Order& order) {
  int64_t count = 0;
  for (const WorkerOrder& tokens : order) count += static_cast<int64_t>(tokens.size());
  return count;
}

Order to_order(const Schedule& schedule) {
  Order order;
  for (const std::vector<Action>& actions : schedule.table()) {
    WorkerOrder& tokens = order.emplace_back();
    tokens.reserve(actions.size());
    for (const Action& action : actions) tokens.push_back(token(action.kind, action.stage));
  }
  return order;
}

Order truncated(const Order& order, int64_t stages, int64_t micro_batches) {
  Counter counter(stages);
  Order result(order.size());
  for (size_t worker = 0; worker < order.size(); ++worker) {
    for (const Token each : order[worker]) {
      if (counter.next(each) < micro_batches) result[worker].push_back(each);
    }
  }
  return result;
}

Order one_at_a_time(const Workload& workload) {
  Order order;
  for (const std::vector<int32_t>& local : workload.stages_of) {
    WorkerOrder& tokens = order.emplace_back();
    tokens.reserve(2 * local.size() * static_cast<size_t>(workload.micro_batches));
    for (int32_t i = 0; i < workload.micro_batches; ++i) {
      for (const int32_t stage : local) tokens.push_back(token(ActionKind::kForward, stage));
      for (size_t k = local.size(); k-- > 0;) {
        tokens.push_back(token(ActionKind::kBackward, local[k]));
      }
    }
  }
  return order;
}

double peak_memory(const Workload& workload, const WorkerOrder& order) {
  double memory = 0.0;
  double peak = 0.0;
  for (const Token each : order) {
    memory += memory_change(workload, each);
    peak = std::max(peak, memory);
  }
  return peak;
}

Timing::Timing(const Workload& workload)
    : workload_(workload), link_before_(static_cast<size_t>(workload.stages), -1) {
  std::map<std::array<int32_t, 2>, int32_t> numbers;
  const auto link_of = [&](size_t a, size_t b) {
    std::array<int32_t, 2> link = {workload.worker_of[a], workload.worker_of[b]};
    if (link[0] == link[1]) return -1;
    std::sort(link.begin(), link.end());
    const auto [found, is_new] = numbers.try_emplace(link, static_cast<int32_t>(links_.size()));
    if (is_new) links_.push_back(link);
    return found->second;
  };
  for (size_t s = 1; s < workload.worker_of.size(); ++s) link_before_[s] = link_of(s - 1, s);
  links_into_.resize(workload.skips_into.size());
  links_from_.resize(workload.skips_from.size());
  for (size_t s = 0; s < workload.skips_into.size(); ++s) {
    for (const Workload::Skip& skip : workload.skips_into[s]) {
      links_into_[s].push_back(link_of(static_cast<size_t>(skip.stage), s));
    }
    for (const Workload::Skip& skip : workload.skips_from[s]) {
      links_from_[s].push_back(link_of(static_cast<size_t>(skip.stage), s));
    }
  }
  const auto stages = static_cast<size_t>(workload.stages);
  const auto m = static_cast<size_t>(workload.micro_batches);
  gradients_ = stages * m;
  const size_t nothing = 2 * gradients_;  // a row of zeros
  const size_t nowhere = nothing + m;     // a cell that is never read
  end_.assign(nowhere + 1, 0.0);
  index_.assign(nowhere + 1, 0);
  // The counts in done_: each stage's forwards, each stage's first parts, a count that is always
  // enough, and a count that stays 0.
  const auto enough = static_cast<int32_t>(2 * stages);
  done_.assign(2 * stages + 2, 0);
  rules_.resize(stages * kComputingKinds);
  for (size_t s = 0; s < stages; ++s) {
    const auto stage = static_cast<int32_t>(s);
    for (const ActionKind kind : {ActionKind::kForward, ActionKind::kBackward,
                                  ActionKind::kInputGradient, ActionKind::kWeightGradient}) {
      Rule& rule = rules_[token(kind, stage)];
      rule.cost = workload.cost[s][static_cast<size_t>(kind)];
      rule.row = nowhere;
      rule.count = enough + 1;
      rule.need_row = nothing;
      rule.need_count = enough;
      rule.waits = workload.worker_of[s];
      if (kind == ActionKind::kWeightGradient) continue;
      rule.step = 1;
      if (kind == ActionKind::kForward) {
        rule.row = s * m;
        rule.count = stage;
        if (s + 1 < stages) rule.waits = workload.worker_of[s + 1];
        if (s == 0) continue;
        rule.need_row = (s - 1) * m;
        rule.need_count = stage - 1;
        rule.takes = workload.activation_takes[s];
      } else {
        rule.row = gradients_ + s * m;
        rule.count = workload.stages + stage;
        if (s > 0) rule.waits = workload.worker_of[s - 1];
        const bool last = s + 1 == stages;
        rule.need_row = last ? s * m : gradients_ + (s + 1) * m;
        rule.need_count = last ? stage : workload.stages + stage + 1;
        if (!last) rule.takes = workload.gradient_takes[s];
      }
    }
  }
  const auto workers = static_cast<size_t>(workload.workers);
  started_.resize(workers);
  now_.resize(workers);
  next_index_.resize(workers);
  waits_for_.resize(workers);
  kept_.resize(workers);
  resumed_.resize(workers);
  runnable_.reserve(workers);
}

// The time when the skip's activation (if `forward`) or its gradient arrives.
double Timing::arrival(const Workload::Skip& skip, int32_t link, size_t i, bool forward) const {
  const size_t cell =
      static_cast<size_t>(skip.stage) * static_cast<size_t>(workload_.micro_batches) + i;
  const double slower = link_ >= 0 && link == link_ ? extra_ : 0.0;
  return forward ? end_[cell] + skip.activation_takes + slower
                 : end_[gradients_ + cell] + skip.gradient_takes + slower;
}

// The later of `now` and the time when the last skip of the micro-batch arrives. The actions that
// send the skips have run, because the chain of activations waits for them.
double Timing::after_skips(size_t stage, size_t i, bool forward, double now) const {
  const auto& skips = (forward ? workload_.skips_into : workload_.skips_from)[stage];
  const auto& links = (forward ? links_into_ : links_from_)[stage];
  for (size_t k = 0; k < skips.size(); ++k) {
    now = std::max(now, arrival(skips[k], links[k], i, forward));
  }
  return now;
}

void Timing::slow_down(int32_t link, double extra) {
  if (link == link_ && extra == extra_) return;
  link_ = link;
  extra_ = extra;
  for (size_t s = 1; s < link_before_.size(); ++s) {
    const double slower = link >= 0 && link_before_[s] == link ? extra : 0.0;
    const auto stage = static_cast<int32_t>(s);
    rules_[token(ActionKind::kForward, stage)].extra = slower;
    rules_[token(ActionKind::kBackward, stage - 1)].extra = slower;
    rules_[token(ActionKind::kInputGradient, stage - 1)].extra = slower;
  }
}

bool Timing::run(const Order& order, int32_t link, double extra) {
  slow_down(link, extra);
  std::fill(done_.begin(), done_.end(), 0);
  std::fill(now_.begin(), now_.end(), 0.0);
  std::fill(resumed_.begin(), resumed_.end(), 0);
  same_until_ = 0.0;
  return go_on(order);
}

void Timing::keep() {
  for (size_t worker = 0; worker < started_.size(); ++worker) {
    const std::vector<Started>& started = started_[worker];
    kept_[worker].resize(started.size());
    std::copy(started.begin() + resumed_[worker], started.end(),
              kept_[worker].begin() + resumed_[worker]);
  }
  kept_now_ = now_;
  same_until_ = std::numeric_limits<double>::infinity();
}

bool Timing::rerun(const Order& order, size_t worker, size_t index) {
  slow_down(-1, 0.0);
  // Only actions that began at or after the start of the first changed action are run again,
  // because earlier ones do not need that action or later ones of its worker.
  const std::vector<Started>& changed = kept_[worker];
  const double until = index < changed.size() ? changed[index].start : kept_now_[worker];
  restore(order, same_until_, until);
  same_until_ = until;
  std::fill(done_.begin(), done_.end(), 0);
  for (size_t w = 0; w < order.size(); ++w) {
    const auto resumed = static_cast<size_t>(resumed_[w]);
    actions_ += resumed_[w];
    now_[w] = 0.0;
    if (resumed == 0) continue;
    const Rule& last = rules_[order[w][resumed - 1]];
    now_[w] = started_[w][resumed - 1].start + last.cost;
    // Restores done_: the last forward and the last first part of each stage say how many have run.
    size_t missing = 2 * workload_.stages_of[w].size();
    for (size_t k = resumed; k-- > 0 && missing > 0;) {
      const Rule& rule = rules_[order[w][k]];
      if (rule.step == 0 || done_[static_cast<size_t>(rule.count)] > 0) continue;
      done_[static_cast<size_t>(rule.count)] = started_[w][k].micro_batch + 1;
      --missing;
    }
  }
  return go_on(order);
}

// Restores the actions of the kept run that began from `from` on and before `until`, and sets
// resumed_ to the number that began before `until`.
void Timing::restore(const Order& order, double from, double until) {
  for (size_t worker = 0; worker < order.size(); ++worker) {
    const std::vector<Started>& kept = kept_[worker];
    std::vector<Started>& started = started_[worker];
    const auto earlier = [](const Started& each, double time) { return each.start < time; };
    const auto end = std::lower_bound(kept.begin(), kept.end(), until, earlier);
    const auto begin = std::lower_bound(kept.begin(), end, from, earlier);
    resumed_[worker] = static_cast<int32_t>(end - kept.begin());
    started.resize(std::max(started.size(), static_cast<size_t>(end - kept.begin())));
    for (auto each = begin; each < end; ++each) {
      const auto index = static_cast<size_t>(each - kept.begin());
      const Rule& rule = rules_[order[worker][index]];
      const size_t cell = rule.row + static_cast<size_t>(each->micro_batch);
      started[index] = *each;
      end_[cell] = each->start + rule.cost;
      index_[cell] = static_cast<int32_t>(index);
    }
  }
}

bool Timing::go_on(const Order& order) {
  return links_into_.empty() ? go_on_as<false>(order) : go_on_as<true>(order);
}

template <bool kSkips>
bool Timing::go_on_as(const Order& order) {
  done_[done_.size() - 2] = std::numeric_limits<int32_t>::max();
  next_index_ = resumed_;
  std::fill(waits_for_.begin(), waits_for_.end(), -1);
  runnable_.clear();
  for (size_t worker = order.size(); worker-- > 0;) {
    runnable_.push_back(static_cast<int32_t>(worker));
    started_[worker].resize(order[worker].size());
  }
  const Rule* const rules = rules_.data();
  double* const end = end_.data();
  int32_t* const index_of = index_.data();
  int32_t* const done = done_.data();
  int32_t* const waits_for = waits_for_.data();
  while (!runnable_.empty()) {
    const auto worker = static_cast<size_t>(runnable_.back());
    runnable_.pop_back();
    const Token* const tokens = order[worker].data();
    const auto size = static_cast<int32_t>(order[worker].size());
    Started* const started = started_[worker].data();
    double now = now_[worker];
    int32_t index = next_index_[worker];
    for (; index < size; ++index) {
      const Rule& rule = rules[tokens[index]];
      const int32_t i = done[rule.count];
      if (i >= done[rule.need_count]) {
        waits_for[worker] = rule.need_count;
        break;
      }
      now = std::max(now, end[rule.need_row + static_cast<size_t>(i)] + rule.takes + rule.extra);
      if (kSkips) {
        const ActionKind kind = kind_of(tokens[index]);
        if (kind != ActionKind::kWeightGradient) {
          now = after_skips(static_cast<size_t>(stage_of(tokens[index])), static_cast<size_t>(i),
                            kind == ActionKind::kForward, now);
        }
      }
      started[index] = {now, i};
      now += rule.cost;
      end[rule.row + static_cast<size_t>(i)] = now;
      index_of[rule.row + static_cast<size_t>(i)] = index;
      done[rule.count] = i + rule.step;
      // If another worker waits for this count, it can run now, because a worker always waits for
      // the next increase of a count.
      if (waits_for[rule.waits] == rule.count) {
        waits_for[rule.waits] = -1;
        runnable_.push_back(rule.waits);
      }
    }
    actions_ += index - next_index_[worker];
    next_index_[worker] = index;
    now_[worker] = now;
  }
  double makespan = 0.0;
  for (size_t worker = 0; worker < order.size(); ++worker) {
    if (static_cast<size_t>(next_index_[worker]) < order[worker].size()) return false;
    makespan = std::max(makespan, now_[worker]);
  }
  makespan_ = makespan;
  return true;
}

double Timing::mean_end() const {
  double sum = 0.0;
  for (const double end : now_) sum += end;
  return sum / static_cast<double>(now_.size());
}

void Timing::critical_path(const Order& order, std::vector<Place>* path) const {
  path->clear();
  const auto m = static_cast<size_t>(workload_.micro_batches);
  size_t worker = 0;
  for (size_t other = 1; other < now_.size(); ++other) {
    if (now_[other] > now_[worker]) worker = other;
  }
  size_t index = order[worker].size();
  if (index == 0) return;
  --index;
  while (true) {
    path->push_back({static_cast<int32_t>(worker), static_cast<int32_t>(index)});
    const double start = started_[worker][index].start;
    const Token each = order[worker][index];
    const auto stage = static_cast<size_t>(stage_of(each));
    if (index > 0) {
      // The action did not wait for another worker if the action before it ends at its start.
      const Token before = order[worker][index - 1];
      const double end =
          started_[worker][index - 1].start +
          workload_
              .cost[static_cast<size_t>(stage_of(before))][static_cast<size_t>(kind_of(before))];
      if (end >= start || kind_of(each) == ActionKind::kWeightGradient) {
        --index;
        continue;
      }
    }
    const bool forward = kind_of(each) == ActionKind::kForward;
    if (forward ? stage == 0 : stage + 1 == static_cast<size_t>(workload_.stages)) return;
    const auto i = static_cast<size_t>(started_[worker][index].micro_batch);
    size_t other = forward ? stage - 1 : stage + 1;
    if (!links_into_.empty()) {
      // If the action begins when a skip arrives, the path goes on with the action that sends that
      // skip.
      const auto& skips = (forward ? workload_.skips_into : workload_.skips_from)[stage];
      const auto& links = (forward ? links_into_ : links_from_)[stage];
      for (size_t k = 0; k < skips.size(); ++k) {
        if (arrival(skips[k], links[k], i, forward) >= start) {
          other = static_cast<size_t>(skips[k].stage);
        }
      }
    }
    index = static_cast<size_t>(index_[(forward ? 0 : gradients_) + other * m + i]);
    worker = static_cast<size_t>(workload_.worker_of[other]);
  }
}

double lower_bound(const Workload& workload) {
  const auto stages = static_cast<size_t>(workload.stages);
  const double m = workload.micro_batches;
  // The time of a backward, whole or split, whichever is shorter. first_part(): until the gradient
  // is sent. both_parts(): in all.
  const auto first_part = [&](size_t s) {
    return std::min(workload.cost[s][kI], workload.cost[s][kB]);
  };
  const auto both_parts = [&](size_t s) {
    return std::min(workload.cost[s][kI] + workload.cost[s][kW], workload.cost[s][kB]);
  };
  // `head`: when the first forward of a stage can begin. `tail`: the time that is needed after the
  // end of a stage's first part.
  std::vector<double> head(stages, 0.0);
  for (size_t s = 1; s < stages; ++s) {
    head[s] = head[s - 1] + workload.cost[s - 1][kF] + workload.activation_takes[s];
    if (workload.skips_into.empty()) continue;
    for (const Workload::Skip& skip : workload.skips_into[s]) {
      const auto from = static_cast<size_t>(skip.stage);
      head[s] = std::max(head[s], head[from] + workload.cost[from][kF] + skip.activation_takes);
    }
  }
  std::vector<double> tail(stages, 0.0);
  for (size_t s = 1; s < stages; ++s) {
    tail[s] = workload.gradient_takes[s - 1] +
              std::max(both_parts(s - 1), first_part(s - 1) + tail[s - 1]);
    if (workload.skips_into.empty()) continue;
    for (const Workload::Skip& skip : workload.skips_into[s]) {
      const auto to = static_cast<size_t>(skip.stage);
      tail[s] = std::max(tail[s],
                         skip.gradient_takes + std::max(both_parts(to), first_part(to) + tail[to]));
    }
  }
  // `up`: the time from the start of a stage's forward to the end of the last stage's forward.
  // `down`: from there to the start of the stage's backward.
  std::vector<double> up(stages, workload.cost[stages - 1][kF]);
  std::vector<double> down(stages, 0.0);
  for (size_t s = stages - 1; s-- > 0;) {
    up[s] = workload.activation_takes[s + 1] + up[s + 1];
    down[s] = down[s + 1] + first_part(s + 1) + workload.gradient_takes[s];
    if (!workload.skips_from.empty()) {
      for (const Workload::Skip& skip : workload.skips_from[s]) {
        const auto to = static_cast<size_t>(skip.stage);
        up[s] = std::max(up[s], skip.activation_takes + up[to]);
        down[s] = std::max(down[s], down[to] + first_part(to) + skip.gradient_takes);
      }
    }
    up[s] += workload.cost[s][kF];
  }
  // The first bound: the time of one micro-batch through all stages and back.
  double bound = head[stages - 1] + workload.cost[stages - 1][kF] +
                 std::max(both_parts(stages - 1), first_part(stages - 1) + tail[stages - 1]);
  for (size_t worker = 0; worker < workload.stages_of.size(); ++worker) {
    double first = std::numeric_limits<double>::infinity();
    double work = 0.0;
    double held = 0.0;  // the sum of memory times the time for which it is held
    for (const int32_t stage : workload.stages_of[worker]) {
      const auto s = static_cast<size_t>(stage);
      first = std::min(first, head[s]);
      work += m * (workload.cost[s][kF] + both_parts(s));
      held += m * (up[s] + down[s]) * workload.held[s];
    }
    bound = std::max(bound, first + work);
    // The third bound is Little's law: the sum of memory times the time for which it is held is at
    // most the limit times the time of the step.
    const double limit = workload.limit[worker];
    if (std::isfinite(limit) && limit > 0.0) bound = std::max(bound, first + held / limit);
  }
  return bound;
}

}  // namespace gpipe::internal
