#include "gpipe/schedule/search/greedy.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace gpipe::internal {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Times that differ by less than this part of a mean action count as equal. Amounts of memory that
// differ by less than this part of themselves count as equal, too.
constexpr double kSame = 1e-9;
// The number of decisions between two calls of `stop`.
constexpr int64_t kAskEvery = 1024;

// Moves an index in a given sequence past weight gradients, which are ignored there.
void skip_weights(const WorkerOrder& tokens, size_t* next) {
  while (*next < tokens.size() && kind_of(tokens[*next]) == ActionKind::kWeightGradient) ++*next;
}

// The work of a decision, in units of an action of Timing::run(): decision_work() for a look at the
// stages of the worker, and scan_work() for finding the next worker among all.
int64_t decision_work(size_t stages) { return 2 + 2 * static_cast<int64_t>(stages); }
int64_t scan_work(size_t workers) { return static_cast<int64_t>(workers / 8); }

}  // namespace

GreedyRule GreedyRule::of(const Workload& workload) {
  GreedyRule rule;
  rule.gap.assign(static_cast<size_t>(workload.workers), 1.0);
  rule.most_pending.assign(static_cast<size_t>(workload.workers), 1 << 30);
  for (int32_t stage = 0; stage < workload.stages; ++stage) {
    const auto s = static_cast<size_t>(stage);
    const double limit = workload.limit[static_cast<size_t>(workload.worker_of[s])];
    double most = workload.micro_batches;
    if (std::isfinite(limit) && workload.held[s] > 0.0) {
      most = std::min(most, std::floor(limit / workload.held[s]));
    }
    const double part = static_cast<double>(workload.stages - stage) / workload.stages;
    rule.most_live.push_back(std::max(1, static_cast<int32_t>(std::lround(most * part))));
  }
  return rule;
}

bool GreedyMargins::cover(const GreedyRule& rule, const GreedyRule& other) const {
  if (rule.sequence != other.sequence || rule.gradients_first != other.gradients_first ||
      rule.gradient_bonus != other.gradient_bonus || rule.depth_bonus != other.depth_bonus ||
      rule.whole != other.whole) {
    return false;
  }
  for (size_t w = 0; w < workers.size(); ++w) {
    const OfWorker& margin = workers[w];
    const double gap = other.gap[w];
    if (gap != rule.gap[w] &&
        (gap <= margin.unfilled * (1.0 + kSame) || gap >= margin.filled * (1.0 - kSame))) {
      return false;
    }
    const int32_t most = other.most_pending[w];
    if (most < margin.few || most >= margin.many) return false;
  }
  for (size_t s = 0; s < stages.size(); ++s) {
    const int32_t most = other.most_live[s];
    if (most <= stages[s].allowed || most > stages[s].refused) return false;
  }
  return true;
}

Greedy::Greedy(const Workload& workload)
    : workload_(workload), mean_(workload.mean_cost()), same_(kSame * mean_) {
  const auto stages = static_cast<size_t>(workload.stages);
  const auto workers = static_cast<size_t>(workload.workers);
  const auto m = static_cast<size_t>(workload.micro_batches);
  stages_.resize(stages);
  for (size_t s = 0; s < stages; ++s) {
    Stage& stage = stages_[s];
    stage.held = workload.held[s];
    stage.waiting = workload.waiting[s];
    stage.activation_takes = workload.activation_takes[s];
    stage.gradient_takes = workload.gradient_takes[s];
    stage.cost = workload.cost[s];
    stage.row = s * m;
    stage.worker = static_cast<size_t>(workload.worker_of[s]);
  }
  for (const std::vector<int32_t>& local : workload.stages_of) {
    double behind = 0.0;
    for (size_t k = local.size(); k-- > 0;) {
      stages_[static_cast<size_t>(local[k])].reserve = behind;
      behind += workload.held[static_cast<size_t>(local[k])];
    }
    decision_work_.push_back(decision_work(local.size()));
  }
  for (const double limit : workload.limit) limit_.push_back(limit * (1.0 + kSame));
  forward_end_.resize(stages * m);
  gradient_end_.resize(stages * m);
  now_.resize(workers);
  memory_.resize(workers);
  pending_.resize(workers);
  choice_.resize(workers);
  known_.resize(workers);
  next_index_.resize(workers);
  while (leaves_ < workers) leaves_ *= 2;
  tree_.resize(2 * leaves_);
}

double Greedy::makespan() const {
  double makespan = 0.0;
  for (const double end : now_) makespan = std::max(makespan, end);
  return makespan;
}

double Greedy::mean_end() const {
  double sum = 0.0;
  for (const double end : now_) sum += end;
  return sum / static_cast<double>(now_.size());
}

void Greedy::set_start(size_t worker, double start) {
  size_t node = leaves_ + worker;
  Node first{start, static_cast<uint64_t>(worker)};
  tree_[node] = first;
  for (; node > 1; node /= 2, tree_[node] = first) {
    const Node& beside = tree_[node ^ 1];
    // If two workers begin at the same time, the one with the lower number is first, whatever the
    // rounding.
    const bool left = (node & 1) == 0;
    const double earlier = left ? beside.start : first.start;
    const double later = left ? first.start : beside.start;
    // The smaller start is chosen with arithmetic and not with a branch, because no processor can
    // predict which of two workers is first.
    const uint64_t take = 0 - static_cast<uint64_t>((earlier < later - same_) == left);
    uint64_t bits[2];
    std::memcpy(&bits[0], &first.start, sizeof(uint64_t));
    std::memcpy(&bits[1], &beside.start, sizeof(uint64_t));
    bits[0] ^= (bits[0] ^ bits[1]) & take;
    std::memcpy(&first.start, &bits[0], sizeof(uint64_t));
    first.worker ^= (first.worker ^ beside.worker) & take;
  }
}

// Longer than other functions, because with skips and weight gradients in functions of their own
// run() took 4 % longer (median of 7 turns on busy cores; by shape 0 to 16 %).
template <bool kSequence, bool kSkips>
Greedy::Choice Greedy::choose(const GreedyRule& rule, size_t worker) {
  const double now = now_[worker];
  const double memory = memory_[worker];
  const double limit = limit_[worker];
  Choice best{kNever, -1, ActionKind::kForward};
  double best_key = kNever;
  int32_t best_rank = 0;
  const auto consider = [&](double start, double key, int32_t rank, int32_t stage,
                            ActionKind kind) {
    if (key > best_key + same_ || (key > best_key - same_ && rank <= best_rank)) return;
    best = {start, stage, kind};
    best_key = key;
    best_rank = rank;
  };
  const int32_t stages = workload_.stages;
  Token next = 0;
  if (kSequence) {
    const WorkerOrder& tokens = (*rule.sequence)[worker];
    if (next_index_[worker] < tokens.size()) next = tokens[next_index_[worker]];
  }
  const auto may = [&](ActionKind kind, int32_t stage) {
    return !kSequence || (stage_of(next) == stage && (kind == ActionKind::kForward) ==
                                                         (kind_of(next) == ActionKind::kForward));
  };
  const auto may_live = [&](int32_t number) {
    const Stage& stage = stages_[static_cast<size_t>(number)];
    GreedyMargins::OfStage& margin = margins_.stages[static_cast<size_t>(number)];
    const int32_t live = stage.forwards - stage.firsts;
    const bool allowed = live < stage.most_live;
    int32_t& bound = allowed ? margin.allowed : margin.refused;
    bound = allowed ? std::max(bound, live) : std::min(bound, live);
    return allowed;
  };
  int32_t oldest = -1;
  double oldest_end = kNever;
  for (const int32_t number : workload_.stages_of[worker]) {
    const Stage& stage = stages_[static_cast<size_t>(number)];
    if (may(ActionKind::kInputGradient, number) && stage.firsts < stage.forwards &&
        (number + 1 == stages || (&stage + 1)->firsts > stage.firsts)) {
      const auto i = static_cast<size_t>(stage.firsts);
      double start = now;
      if (number + 1 < stages) {
        start = std::max(start, gradient_end_[(&stage + 1)->row + i] + stage.gradient_takes);
        if (kSkips) {
          for (const Workload::Skip& skip : workload_.skips_from[static_cast<size_t>(number)]) {
            const size_t cell = stages_[static_cast<size_t>(skip.stage)].row + i;
            start = std::max(start, gradient_end_[cell] + skip.gradient_takes);
          }
        }
      }
      // A split backward needs room, because a pending weight gradient may need more memory than
      // the activation that its forward left. Without room the backward is whole.
      const bool room = memory + stage.waiting - stage.held <= limit;
      const bool whole =
          stage.firsts == stage.seconds &&
          (!room || (kSequence ? kind_of(next) == ActionKind::kBackward : stage.whole));
      if (room || whole) {
        consider(start, start - stage.depth - gradient_bonus_,
                 number + 1 + (rule.gradients_first ? 2 * stages : 0), number,
                 whole ? ActionKind::kBackward : ActionKind::kInputGradient);
      }
    }
    if (may(ActionKind::kForward, number) && stage.forwards < workload_.micro_batches &&
        (number == 0 || (&stage - 1)->forwards > stage.forwards) &&
        memory + stage.held + (kSequence ? 0.0 : stage.reserve) <= limit &&
        (kSequence || may_live(number))) {
      const auto i = static_cast<size_t>(stage.forwards);
      double start = now;
      if (number > 0) {
        start = std::max(start, forward_end_[(&stage - 1)->row + i] + stage.activation_takes);
        if (kSkips) {
          for (const Workload::Skip& skip : workload_.skips_into[static_cast<size_t>(number)]) {
            const size_t cell = stages_[static_cast<size_t>(skip.stage)].row + i;
            start = std::max(start, forward_end_[cell] + skip.activation_takes);
          }
        }
      }
      consider(start, start - stage.depth, number + 1 + stages, number, ActionKind::kForward);
    }
    if (stage.oldest_end >= oldest_end) continue;
    oldest = number;
    oldest_end = stage.oldest_end;
  }
  if (oldest < 0) return best;
  const Choice weight{now, oldest, ActionKind::kWeightGradient};
  GreedyMargins::OfWorker& margin = margins_.workers[worker];
  const double takes =
      stages_[static_cast<size_t>(oldest)].cost[static_cast<size_t>(ActionKind::kWeightGradient)];
  if (best.start > now + same_) {
    const bool fits = now + rule.gap[worker] * takes <= best.start + same_;
    if (takes > 0.0) {
      const double gap = (best.start + same_ - now) / takes;
      if (fits) {
        margin.filled = std::min(margin.filled, gap);
      } else {
        margin.unfilled = std::max(margin.unfilled, gap);
      }
    }
    if (fits) return weight;
  }
  if (pending_[worker] > rule.most_pending[worker]) {
    margin.many = std::min(margin.many, pending_[worker]);
    return weight;
  }
  margin.few = std::max(margin.few, pending_[worker]);
  return best;
}

void Greedy::begin(const GreedyRule& rule) {
  for (size_t s = 0; s < stages_.size(); ++s) {
    Stage& stage = stages_[s];
    stage.forwards = stage.firsts = stage.seconds = 0;
    stage.most_live = rule.most_live[s];
    stage.whole = !rule.whole.empty() && rule.whole[s];
    stage.oldest_end = kNever;
    stage.depth = rule.depth_bonus * mean_ * static_cast<int32_t>(s) / workload_.stages;
  }
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  margins_.workers.assign(now_.size(), {-1.0, kNever, 0, kMost});
  margins_.stages.assign(stages_.size(), {-1, kMost});
  gradient_bonus_ = rule.gradient_bonus * mean_;
  std::fill(now_.begin(), now_.end(), 0.0);
  std::fill(memory_.begin(), memory_.end(), 0.0);
  std::fill(pending_.begin(), pending_.end(), 0);
  std::fill(known_.begin(), known_.end(), 0);
  std::fill(next_index_.begin(), next_index_.end(), 0);
  for (size_t leaf = 0; leaf < leaves_; ++leaf) {
    tree_[leaves_ + leaf] = {leaf < now_.size() ? 0.0 : kNever, static_cast<uint64_t>(leaf)};
  }
  for (size_t node = leaves_; node-- > 1;) tree_[node] = tree_[2 * node];
}

bool Greedy::run(const GreedyRule& rule, Order* order, const std::function<bool()>& stop) {
  const bool skips = !workload_.skips_into.empty();
  if (rule.sequence != nullptr) {
    return skips ? run_as<true, true>(rule, order, stop) : run_as<true, false>(rule, order, stop);
  }
  return skips ? run_as<false, true>(rule, order, stop) : run_as<false, false>(rule, order, stop);
}

template <bool kSequence, bool kSkips>
bool Greedy::run_as(const GreedyRule& rule, Order* order, const std::function<bool()>& stop) {
  begin(rule);
  order->resize(now_.size());
  for (WorkerOrder& tokens : *order) tokens.clear();
  for (size_t worker = 0; kSequence && worker < now_.size(); ++worker) {
    skip_weights((*rule.sequence)[worker], &next_index_[worker]);
  }
  const int64_t scan = scan_work(now_.size());
  // The work of a worker's decision counts whenever something that the decision depends on has
  // changed. But most decisions are made only when it is the worker's turn.
  int64_t work = 0;
  for (const int64_t each : decision_work_) work += each;
  const auto tell = [&](size_t worker, size_t other) {
    if (other == worker) return;
    work += decision_work_[other];
    if (known_[other]) forget(other, now_[other]);
  };
  // A cell's second part (B or W) comes last, so the order is complete when all second parts are in
  // it.
  for (int64_t left = int64_t{workload_.stages} * workload_.micro_batches; left > 0;) {
    actions_ += work + scan;
    auto worker = static_cast<size_t>(tree_[1].worker);
    while (!known_[worker]) {
      choice_[worker] = choose<kSequence, kSkips>(rule, worker);
      known_[worker] = 1;
      if (choice_[worker].start == now_[worker]) break;  // the worker is still the first
      set_start(worker, choice_[worker].start);
      worker = static_cast<size_t>(tree_[1].worker);
    }
    const Choice choice = choice_[worker];
    if (choice.start == kNever) return false;
    if (stop && left % kAskEvery == 0 && stop()) return false;
    Stage& stage = stages_[static_cast<size_t>(choice.stage)];
    const double end = choice.start + stage.cost[static_cast<size_t>(choice.kind)];
    now_[worker] = end;
    work = decision_work_[worker];
    switch (choice.kind) {
      case ActionKind::kForward:
        forward_end_[stage.row + static_cast<size_t>(stage.forwards++)] = end;
        memory_[worker] += stage.held;
        if (choice.stage + 1 < workload_.stages) tell(worker, (&stage + 1)->worker);
        break;
      case ActionKind::kWeightGradient:
        ++stage.seconds;
        --pending_[worker];
        stage.oldest_end = stage.seconds < stage.firsts
                               ? gradient_end_[stage.row + static_cast<size_t>(stage.seconds)]
                               : kNever;
        memory_[worker] -= stage.waiting;
        --left;
        break;
      case ActionKind::kBackward:
      case ActionKind::kInputGradient:
        gradient_end_[stage.row + static_cast<size_t>(stage.firsts++)] = end;
        memory_[worker] -= stage.held;
        if (choice.kind == ActionKind::kInputGradient) {
          if (stage.firsts == stage.seconds + 1) stage.oldest_end = end;
          ++pending_[worker];
          memory_[worker] += stage.waiting;
        } else {
          ++stage.seconds;
          --left;
        }
        if (choice.stage > 0) tell(worker, (&stage - 1)->worker);
        break;
      case ActionKind::kOffload:
      case ActionKind::kReload:
        break;  // never chosen: see offloads.h
    }
    forget(worker, end);
    (*order)[worker].push_back(token(choice.kind, choice.stage));
    if (choice.kind != ActionKind::kWeightGradient) {
      ++next_index_[worker];
      if (kSequence) skip_weights((*rule.sequence)[worker], &next_index_[worker]);
    }
  }
  return true;
}

}  // namespace gpipe::internal
