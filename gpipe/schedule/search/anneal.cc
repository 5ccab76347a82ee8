#include "gpipe/schedule/search/anneal.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <optional>
#include <vector>

namespace gpipe::internal {
namespace {

// The most actions that an action passes in a move. Moves are small.
constexpr size_t kFarthest = 4;
// The share of moves that move an action of the critical path. Only such moves can shorten the
// order. The other moves make room for them.
constexpr double kCritical = 0.8;
// The share of moves that move the actions of several micro-batches in a row in the same way,
// because a change of the steady state needs such moves.
constexpr double kSeveral = 0.05;
// The share of moves that join or split a backward. There are such moves only if joining changes
// times.
constexpr double kJoin = 0.15;
// For every other seed, the share of moves that exchange two actions of one kind that belong to two
// stages of a worker. The worker then holds as much as before; an action that moves alone would
// make it hold more for a time. In a V there are no such moves: they find less there, because the
// worker's two stages differ too much.
constexpr double kExchange = 0.2;
// The weight of the workers' mean end beside the makespan. Most changes leave the makespan the
// same, so the makespan alone does not say whether a change leads to a better order.
constexpr double kMeanEnd = 0.5;

constexpr double kSame = 1e-9;
// Choosing a move takes little work beside the run that follows it, so the choice is not counted.
// But in some workloads no move is possible. So after kInVain moves in a row without a run, each
// move counts as kMoveInVain.
constexpr int32_t kInVain = 1000;
constexpr int64_t kMoveInVain = 8;
// The work between two calls of `stop`, which takes a few milliseconds.
constexpr int64_t kAskEvery = 200'000;

// Moves `count` occurrences of a token, from `index` on, by up to `far` places, but never past
// another occurrence. Returns whether anything moved.
bool move_tokens(WorkerOrder* tokens, size_t index, size_t far, int32_t count, bool earlier) {
  const Token each = (*tokens)[index];
  const auto size = static_cast<std::ptrdiff_t>(tokens->size());
  const std::ptrdiff_t step = earlier ? -1 : 1;
  const auto begin = tokens->begin();
  bool moved = false;
  // Moves to earlier places begin with the first occurrence, and moves to later places with the
  // last, so that no occurrence is in the way of the next.
  auto from = static_cast<std::ptrdiff_t>(index);
  while (count-- > 0 && from >= 0 && from < size) {
    std::ptrdiff_t to = from;
    for (size_t k = 0; k < far; ++k) {
      if (to + step < 0 || to + step >= size || begin[to + step] == each) break;
      to += step;
    }
    if (to < from) std::rotate(begin + to, begin + from, begin + from + 1);
    if (to > from) std::rotate(begin + from, begin + from + 1, begin + to + 1);
    moved = moved || to != from;
    do from -= step;
    while (from >= 0 && from < size && begin[from] != each);
  }
  return moved;
}

// Exchanges the token at `index` with the nearest one before or after it that has its kind and
// another stage. Returns whether there is one.
bool exchange(WorkerOrder* tokens, size_t index, bool earlier) {
  const Token each = (*tokens)[index];
  const auto differs = [each](Token other) {
    return kind_of(other) == kind_of(each) && other != each;
  };
  const auto here = tokens->begin() + static_cast<std::ptrdiff_t>(index);
  if (earlier) {
    const auto found = std::find_if(std::make_reverse_iterator(here), tokens->rend(), differs);
    if (found == tokens->rend()) return false;
    std::iter_swap(here, found);
    return true;
  }
  const auto found = std::find_if(here, tokens->end(), differs);
  if (found == tokens->end()) return false;
  std::iter_swap(here, found);
  return true;
}

// Whether there are moves of kExchange: workers have several stages, but not as in a V.
bool exchanges(const Workload& workload) {
  if (workload.stages <= workload.workers) return false;
  bool v_shape = workload.stages == 2 * workload.workers;
  for (size_t s = 0; s < workload.worker_of.size(); ++s) {
    v_shape =
        v_shape && workload.worker_of[s] == workload.worker_of[workload.worker_of.size() - 1 - s];
  }
  return !v_shape;
}

// Joins the input gradient at `index` and its weight gradient to a whole backward, or splits the
// whole backward at `index`, with the second half up to `far` places later. Returns whether it did.
bool join_or_split(WorkerOrder* tokens, size_t index, size_t far) {
  const Token each = (*tokens)[index];
  const int32_t stage = stage_of(each);
  const Token whole = token(ActionKind::kBackward, stage);
  const Token weight = token(ActionKind::kWeightGradient, stage);
  const auto begin = tokens->begin();
  const auto first = begin + static_cast<std::ptrdiff_t>(index);
  if (kind_of(each) == ActionKind::kInputGradient) {
    // If no other weight gradient of the stage is pending, the next one belongs to the same cell.
    const auto second = std::find(first, tokens->end(), weight);
    if (second == tokens->end()) return false;
    *first = whole;
    tokens->erase(second);
    return true;
  }
  if (kind_of(each) != ActionKind::kBackward) return false;
  *first = token(ActionKind::kInputGradient, stage);
  auto to = first + 1;
  for (size_t k = 0; k < far && to != tokens->end() && *to != whole; ++k) ++to;
  tokens->insert(to, weight);
  return true;
}

struct Place {
  size_t worker;
  size_t index;
};

// Draws where the next change begins. None: the worker that was drawn has no token.
std::optional<Place> draw_place(const std::vector<Timing::Place>& path, const Order& order,
                                Random* random) {
  if (random->part() < kCritical && !path.empty()) {
    const Timing::Place place = path[static_cast<size_t>(random->below(path.size()))];
    return Place{static_cast<size_t>(place.worker), static_cast<size_t>(place.index)};
  }
  const auto worker = static_cast<size_t>(random->below(order.size()));
  if (order[worker].empty()) return std::nullopt;
  return Place{worker, static_cast<size_t>(random->below(order[worker].size()))};
}

// Changes the tokens at the place in a way that is drawn. Returns whether there is a change.
bool change(WorkerOrder* tokens, size_t index, bool joins, bool by_exchange,
            const Workload& workload, Random* random) {
  const size_t far = 1 + static_cast<size_t>(random->below(kFarthest));
  const bool earlier = random->next() >> 40 & 1;
  const bool several = random->part() < kSeveral;
  if (joins && random->part() < kJoin) return join_or_split(tokens, index, far);
  if (by_exchange && random->part() < kExchange) return exchange(tokens, index, earlier);
  const int32_t count =
      several ? 2 + random->below(static_cast<size_t>(workload.micro_batches)) : 1;
  return move_tokens(tokens, index, far, count, earlier);
}

}  // namespace

bool keeps_limits(const Workload& workload, int32_t worker, const WorkerOrder& order) {
  const auto w = static_cast<size_t>(worker);
  const double limit = workload.limit[w] * (1.0 + kSame);
  thread_local std::vector<std::array<int32_t, 3>> counts;
  counts.resize(std::max(counts.size(), static_cast<size_t>(workload.stages)));
  for (const int32_t stage : workload.stages_of[w]) counts[static_cast<size_t>(stage)] = {0, 0, 0};
  double memory = 0.0;
  for (const Token each : order) {
    const ActionKind kind = kind_of(each);
    auto& [forwards, firsts, seconds] = counts[static_cast<size_t>(stage_of(each))];
    if (kind == ActionKind::kForward) {
      ++forwards;
    } else if (kind == ActionKind::kWeightGradient) {
      if (seconds == firsts) return false;
      ++seconds;
    } else {
      if (firsts == forwards) return false;
      if (kind == ActionKind::kBackward && firsts != seconds++) return false;
      ++firsts;
    }
    memory += memory_change(workload, each);
    if (memory > limit) return false;
  }
  return true;
}

double anneal(const Workload& workload, const Annealing& annealing, Timing* timing, Order* order) {
  const double unit = workload.mean_cost();
  const bool joins = annealing.joins && workload.whole_differs();
  const bool by_exchange = annealing.seed % 2 == 0 && exchanges(workload);
  if (!timing->run(*order)) return std::numeric_limits<double>::infinity();
  double value = 0.0;  // the objective, without the weighted mean end
  const auto rate = [&](const Order& rated) {
    const double guide = kMeanEnd * timing->mean_end();
    value = annealing.objective ? annealing.objective(timing, rated) : timing->makespan();
    return value + guide;
  };
  Random random(annealing.seed);
  Order current = *order;
  std::vector<Timing::Place> path;
  timing->critical_path(current, &path);
  timing->keep();
  double rating = rate(current);
  double best = value;
  WorkerOrder kept;
  size_t all = 0;
  for (const WorkerOrder& tokens : current) all += tokens.size();
  const auto path_work = static_cast<int64_t>(all / 10);
  int32_t in_vain = 0;  // the number of moves in a row that led to no run
  const int64_t start = timing->actions();
  int64_t ask = 0;
  while (true) {
    const int64_t done = timing->actions() - start;
    if (done >= annealing.budget || best <= annealing.bound + kSame * unit) break;
    if (done >= ask) {
      if (annealing.stop && annealing.stop()) break;
      ask = done + kAskEvery;
    }
    const double part = static_cast<double>(done) / static_cast<double>(annealing.budget);
    const double heat = unit * annealing.hot * std::pow(annealing.cold / annealing.hot, part);
    const std::optional<Place> place = draw_place(path, current, &random);
    if (!place) {
      timing->count(1);
      continue;
    }
    const size_t worker = place->worker;
    WorkerOrder& tokens = current[worker];
    kept = tokens;
    const bool moved = change(&tokens, place->index, joins, by_exchange, workload, &random);
    timing->count(look_work(tokens.size()) + (in_vain >= kInVain ? kMoveInVain : 0));
    in_vain = std::min(in_vain + 1, kInVain);
    if (!moved) continue;
    if (!keeps_limits(workload, static_cast<int32_t>(worker), tokens)) {
      tokens.swap(kept);
      continue;
    }
    in_vain = 0;
    const auto first = std::mismatch(tokens.begin(), tokens.end(), kept.begin(), kept.end()).first;
    if (!timing->rerun(current, worker, static_cast<size_t>(first - tokens.begin()))) {
      tokens.swap(kept);
      continue;
    }
    const double new_rating = rate(current);
    if (new_rating > rating && random.part() >= std::exp((rating - new_rating) / heat)) {
      tokens.swap(kept);
      continue;
    }
    rating = new_rating;
    if (value < best - kSame * unit) {
      best = value;
      *order = current;
    }
    if (annealing.objective) timing->run(current);  // the objective may have run other orders
    timing->keep();
    timing->critical_path(current, &path);
    timing->count(path_work);
  }
  return best;
}

}  // namespace gpipe::internal
