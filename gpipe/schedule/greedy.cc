#include "gpipe/schedule/greedy.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gpipe::internal {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Times that differ by less than this part of a mean action are one time; so are, by their own
// size, amounts of memory.
constexpr double kSame = 1e-9;
// How many decisions are between two questions whether to stop.
constexpr int64_t kAskEvery = 1024;

// What a decision takes, in the time of an action of Timing::run(): it looks at the stages of the
// worker, and who is next is looked for among all workers.
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

Greedy::Greedy(const Workload& workload)
    : workload_(workload), mean_(workload.mean_cost()), same_(kSame * mean_) {
  const auto stages = static_cast<size_t>(workload.stages);
  const auto workers = static_cast<size_t>(workload.workers);
  reserve_.assign(stages, 0.0);
  for (const std::vector<int32_t>& local : workload.stages_of) {
    double behind = 0.0;
    for (size_t k = local.size(); k-- > 0;) {
      reserve_[static_cast<size_t>(local[k])] = behind;
      behind += workload.held[static_cast<size_t>(local[k])];
    }
  }
  const size_t cells = stages * static_cast<size_t>(workload.micro_batches);
  forward_end_.resize(cells);
  gradient_end_.resize(cells);
  forwards_.resize(stages);
  firsts_.resize(stages);
  seconds_.resize(stages);
  now_.resize(workers);
  memory_.resize(workers);
  choice_.resize(workers);
  stale_.resize(workers);
  next_index_.resize(workers);
}

Greedy::Choice Greedy::choose(const GreedyRule& rule, size_t worker) const {
  const auto m = static_cast<size_t>(workload_.micro_batches);
  const double now = now_[worker];
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
  if (rule.sequence != nullptr) {
    const WorkerOrder& tokens = (*rule.sequence)[worker];
    if (next_index_[worker] < tokens.size()) next = tokens[next_index_[worker]];
  }
  const auto may = [&](ActionKind kind, int32_t stage) {
    if (rule.sequence == nullptr) return true;
    return stage_of(next) == stage &&
           (kind == ActionKind::kForward) == (kind_of(next) == ActionKind::kForward);
  };
  int32_t pending = 0;
  int32_t oldest = -1;
  double oldest_end = kNever;
  for (const int32_t stage : workload_.stages_of[worker]) {
    const auto s = static_cast<size_t>(stage);
    const double depth = rule.depth_bonus * mean_ * stage / stages;
    const int32_t waiting = firsts_[s] - seconds_[s];
    if (may(ActionKind::kInputGradient, stage) && firsts_[s] < forwards_[s] &&
        (stage + 1 == stages || firsts_[s + 1] > firsts_[s])) {
      double start = now;
      if (stage + 1 < stages) {
        start = std::max(start, gradient_end_[(s + 1) * m + static_cast<size_t>(firsts_[s])] +
                                    workload_.gradient_takes[s]);
        if (!workload_.skips_from.empty()) {
          for (const Workload::Skip& skip : workload_.skips_from[s]) {
            const size_t cell =
                static_cast<size_t>(skip.stage) * m + static_cast<size_t>(firsts_[s]);
            start = std::max(start, gradient_end_[cell] + skip.gradient_takes);
          }
        }
      }
      // What waits for W may need more memory than what the forward has left.
      const bool room = memory_[worker] + workload_.waiting[s] - workload_.held[s] <=
                        workload_.limit[worker] * (1.0 + kSame);
      const bool whole = waiting == 0 && (!room || (rule.sequence != nullptr
                                                        ? kind_of(next) == ActionKind::kBackward
                                                        : !rule.whole.empty() && rule.whole[s]));
      if (room || whole) {
        consider(start, start - depth - rule.gradient_bonus * mean_,
                 stage + 1 + (rule.gradients_first ? 2 * stages : 0), stage,
                 whole ? ActionKind::kBackward : ActionKind::kInputGradient);
      }
    }
    if (may(ActionKind::kForward, stage) && forwards_[s] < workload_.micro_batches &&
        (stage == 0 || forwards_[s - 1] > forwards_[s]) &&
        (rule.sequence != nullptr || forwards_[s] - firsts_[s] < rule.most_live[s]) &&
        memory_[worker] + workload_.held[s] + (rule.sequence != nullptr ? 0.0 : reserve_[s]) <=
            workload_.limit[worker] * (1.0 + kSame)) {
      double start = now;
      if (stage > 0) {
        start = std::max(start, forward_end_[(s - 1) * m + static_cast<size_t>(forwards_[s])] +
                                    workload_.activation_takes[s]);
        if (!workload_.skips_into.empty()) {
          for (const Workload::Skip& skip : workload_.skips_into[s]) {
            const size_t cell =
                static_cast<size_t>(skip.stage) * m + static_cast<size_t>(forwards_[s]);
            start = std::max(start, forward_end_[cell] + skip.activation_takes);
          }
        }
      }
      consider(start, start - depth, stage + 1 + stages, stage, ActionKind::kForward);
    }
    if (waiting == 0) continue;
    pending += waiting;
    const double end = gradient_end_[s * m + static_cast<size_t>(seconds_[s])];
    if (end >= oldest_end) continue;
    oldest = stage;
    oldest_end = end;
  }
  if (oldest < 0) return best;
  const double takes =
      workload_.cost[static_cast<size_t>(oldest)][static_cast<size_t>(ActionKind::kWeightGradient)];
  const bool fits =
      best.start > now + same_ && now + rule.gap[worker] * takes <= best.start + same_;
  if (fits || pending > rule.most_pending[worker])
    return {now, oldest, ActionKind::kWeightGradient};
  return best;
}

bool Greedy::run(const GreedyRule& rule, Order* order, const std::function<bool()>& stop) {
  for (std::vector<int32_t>* each : {&forwards_, &firsts_, &seconds_}) {
    std::fill(each->begin(), each->end(), 0);
  }
  std::fill(now_.begin(), now_.end(), 0.0);
  std::fill(memory_.begin(), memory_.end(), 0.0);
  std::fill(stale_.begin(), stale_.end(), 1);
  order->resize(now_.size());
  for (WorkerOrder& tokens : *order) tokens.clear();
  // Past the weight gradients of the sequence.
  const auto advance = [&](size_t worker) {
    if (rule.sequence == nullptr) return;
    const WorkerOrder& tokens = (*rule.sequence)[worker];
    size_t& next = next_index_[worker];
    while (next < tokens.size() && kind_of(tokens[next]) == ActionKind::kWeightGradient) ++next;
  };
  for (size_t worker = 0; worker < next_index_.size(); ++worker) {
    next_index_[worker] = 0;
    advance(worker);
  }
  const auto m = static_cast<size_t>(workload_.micro_batches);
  // Second parts are last: when all are done, so is everything.
  for (int64_t left = int64_t{workload_.stages} * workload_.micro_batches; left > 0;) {
    size_t worker = 0;
    double start = kNever;
    for (size_t w = 0; w < now_.size(); ++w) {
      if (stale_[w]) {
        choice_[w] = choose(rule, w);
        stale_[w] = 0;
        actions_ += decision_work(workload_.stages_of[w].size());
      }
      // At one time the first worker is first, whatever the rounding.
      if (choice_[w].start < start - same_ || start == kNever) {
        start = choice_[w].start;
        worker = w;
      }
    }
    actions_ += scan_work(now_.size());
    if (start == kNever) return false;
    if (stop && left % kAskEvery == 0 && stop()) return false;
    const Choice choice = choice_[worker];
    const auto s = static_cast<size_t>(choice.stage);
    const double end = start + workload_.cost[s][static_cast<size_t>(choice.kind)];
    now_[worker] = end;
    stale_[worker] = 1;
    switch (choice.kind) {
      case ActionKind::kForward:
        forward_end_[s * m + static_cast<size_t>(forwards_[s]++)] = end;
        memory_[worker] += workload_.held[s];
        if (choice.stage + 1 < workload_.stages) {
          stale_[static_cast<size_t>(workload_.worker_of[s + 1])] = 1;
        }
        break;
      case ActionKind::kWeightGradient:
        ++seconds_[s];
        memory_[worker] -= workload_.waiting[s];
        --left;
        break;
      case ActionKind::kBackward:
      case ActionKind::kInputGradient:
        gradient_end_[s * m + static_cast<size_t>(firsts_[s]++)] = end;
        memory_[worker] -= workload_.held[s];
        if (choice.kind == ActionKind::kInputGradient) {
          memory_[worker] += workload_.waiting[s];
        } else {
          ++seconds_[s];
          --left;
        }
        if (choice.stage > 0) stale_[static_cast<size_t>(workload_.worker_of[s - 1])] = 1;
        break;
    }
    (*order)[worker].push_back(token(choice.kind, choice.stage));
    if (choice.kind != ActionKind::kWeightGradient) {
      ++next_index_[worker];
      advance(worker);
    }
  }
  return true;
}

}  // namespace gpipe::internal
