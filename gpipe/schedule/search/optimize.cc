#include "gpipe/schedule/search/optimize.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "gpipe/schedule/search/anneal.h"
#include "gpipe/schedule/search/greedy.h"

namespace gpipe::internal {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Candidate {
  Order order;
  double makespan = kNever;
  int32_t seed = -1;
};

// Searches for orders with a short makespan by varying the rules of greedy workers.
class RuleSearch {
 public:
  RuleSearch(const Workload& workload, const Optimizing& optimizing)
      : workload_(workload), optimizing_(optimizing), greedy_(workload) {}

  int64_t actions() const { return greedy_.actions() + saved_; }
  // The number of actions in the orders that were made. This work counts in addition to actions(),
  // the work of making them.
  int64_t order_actions() const { return order_actions_; }

  // Finds the best places for the weight gradients of an order. First all workers have the same
  // rule, which takes `most` work or a little more. Then the rule is varied by worker, with
  // `budget`.
  Candidate place_weights(const Order& sequence, int64_t most, int64_t budget) {
    Candidate best;
    tried_.clear();
    GreedyRule rule = GreedyRule::of(workload_);
    rule.sequence = &sequence;
    GreedyRule best_rule = rule;
    double rating = kNever;
    int64_t start = work();
    for (const int32_t most_pending : {1 << 30, 8, 4, 2, 1, 0}) {
      for (const double gap : {1.0, 0.75, 0.5, 0.25, 0.0, 1e6}) {
        if (work() - start > most || (rating < kNever && stopped())) break;
        std::fill(rule.gap.begin(), rule.gap.end(), gap);
        std::fill(rule.most_pending.begin(), rule.most_pending.end(), most_pending);
        const double new_rating = rate(rule, &best);
        if (new_rating >= rating) continue;
        rating = new_rating;
        best_rule = rule;
      }
    }
    start = work();
    Random random(1);
    while (work() - start < budget && rating < kNever && !stopped()) {
      rule = best_rule;
      const auto worker = static_cast<size_t>(random.below(rule.gap.size()));
      if (random.below(2) == 0) {
        rule.gap[worker] = 0.1 * random.below(13);
      } else {
        rule.most_pending[worker] = random.below(10);
        if (rule.most_pending[worker] == 9) rule.most_pending[worker] = 1 << 30;
      }
      const double new_rating = rate(rule, &best);
      if (new_rating > rating) continue;
      rating = new_rating;
      best_rule = rule;
    }
    return best;
  }

  // Makes an order by a random rule, as a start that is unlike the others.
  Candidate drawn(Random* random) {
    GreedyRule rule = GreedyRule::of(workload_);
    rule.gradients_first = random->below(2) == 0;
    std::fill(rule.gap.begin(), rule.gap.end(), 0.25 * random->below(5));
    if (!optimizing_.split) rule.whole.assign(rule.most_live.size(), true);
    // The first stages of all workers get the same number of live micro-batches. So do their second
    // stages, and so on.
    const size_t most =
        static_cast<size_t>(*std::max_element(rule.most_live.begin(), rule.most_live.end()));
    std::vector<int32_t> live;
    for (const std::vector<int32_t>& local : workload_.stages_of) {
      for (size_t k = 0; k < local.size(); ++k) {
        if (k == live.size()) live.push_back(1 + random->below(most));
        rule.most_live[static_cast<size_t>(local[k])] = live[k];
      }
    }
    Candidate candidate;
    tried_.clear();
    rate(rule, &candidate);
    return candidate;
  }

  // Varies the rule of start `number` with `budget`, and returns the best order.
  Candidate run(int32_t number, int64_t budget) {
    GreedyRule rule = GreedyRule::of(workload_);
    if (number & 1) std::fill(rule.gap.begin(), rule.gap.end(), 0.5);
    rule.gradients_first = (number & 2) == 0;
    rule.gradient_bonus = number & 4 ? 0.25 : 0.0;
    if (!optimizing_.split) rule.whole.assign(rule.most_live.size(), true);
    const double unit = workload_.mean_cost();
    Random random(static_cast<uint64_t>(number) + 1);
    Candidate best;
    tried_.clear();
    double rating = rate(rule, &best);
    const int64_t start = work();
    while (work() - start < budget && !stopped()) {
      const double part = static_cast<double>(work() - start) / static_cast<double>(budget);
      const double heat = unit * kHot * std::pow(kCold / kHot, part);
      const GreedyRule changed = change(rule, &random);
      const double new_rating = rate(changed, &best);
      if (new_rating > rating && random.part() >= std::exp((rating - new_rating) / heat)) continue;
      rating = new_rating;
      rule = changed;
    }
    return best;
  }

 private:
  static constexpr double kHot = 2.0;
  static constexpr double kCold = 0.05;
  static constexpr double kMeanEnd = 0.2;

  bool stopped() const { return optimizing_.stop && optimizing_.stop(); }
  int64_t work() const { return actions() + order_actions_; }

  // A rule that was tried since `best` was begun, and its result.
  struct Tried {
    GreedyRule rule;
    GreedyMargins margins;
    double rating = kNever;
    int64_t actions = 0;
    int64_t order_actions = 0;
  };
  static constexpr size_t kMostTried = 64;

  double rate(const GreedyRule& rule, Candidate* best) {
    // Using a remembered result counts as much work as computing it again, so that the orders found
    // within a budget do not depend on what is remembered.
    for (const Tried& tried : tried_) {
      if (!tried.margins.cover(tried.rule, rule)) continue;
      saved_ += tried.actions;
      order_actions_ += tried.order_actions;
      return tried.rating;
    }
    const int64_t before = greedy_.actions();
    if (!greedy_.run(rule, &order_, optimizing_.stop)) return kNever;
    const int64_t count = count_of(order_);
    order_actions_ += count;
    const double makespan = greedy_.makespan();
    if (makespan < best->makespan) {
      best->makespan = makespan;
      best->order = order_;
    }
    const double rating = makespan + kMeanEnd * greedy_.mean_end();
    Tried& tried = tried_.size() < kMostTried ? tried_.emplace_back() : tried_[next_ % kMostTried];
    ++next_;
    tried = {rule, greedy_.margins(), rating, greedy_.actions() - before, count};
    return rating;
  }

  GreedyRule change(GreedyRule rule, Random* random) const {
    const size_t stages = rule.most_live.size();
    const bool wholes = optimizing_.split && workload_.whole_differs();
    const auto which = static_cast<size_t>(random->below(stages + (wholes ? 5 : 4)));
    const auto vary = [&](size_t stage) {
      int32_t& most = rule.most_live[stage];
      most = std::clamp(most + (random->next() >> 40 & 1 ? 1 : -1), 1, workload_.micro_batches);
    };
    if (which < stages) {
      vary(which);
      if (random->below(3) == 0) vary(static_cast<size_t>(random->below(stages)));
    } else if (which == stages) {
      const int32_t most = random->below(8);
      std::fill(rule.most_pending.begin(), rule.most_pending.end(), most == 7 ? 1 << 30 : most);
    } else if (which == stages + 1) {
      std::fill(rule.gap.begin(), rule.gap.end(), 0.1 * random->below(13));
    } else if (which == stages + 2) {
      rule.gradient_bonus = 0.1 * random->below(11);
    } else if (which == stages + 3) {
      rule.depth_bonus = 0.2 * random->below(11);
    } else {
      rule.whole.resize(stages, false);
      const auto stage = static_cast<size_t>(random->below(stages));
      rule.whole[stage] = !rule.whole[stage];
    }
    return rule;
  }

  const Workload& workload_;
  const Optimizing& optimizing_;
  Greedy greedy_;
  Order order_;
  std::vector<Tried> tried_;  // the most recent results
  size_t next_ = 0;
  int64_t saved_ = 0;
  int64_t order_actions_ = 0;
};

// Sorts the candidates, the best first, and keeps at most `count` different ones.
void keep_best(std::vector<Candidate>* candidates, size_t count) {
  std::stable_sort(candidates->begin(), candidates->end(),
                   [](const Candidate& a, const Candidate& b) { return a.makespan < b.makespan; });
  std::vector<Candidate> kept;
  for (Candidate& candidate : *candidates) {
    if (kept.size() == count || candidate.makespan == kNever) break;
    const bool known = std::any_of(kept.begin(), kept.end(), [&](const Candidate& other) {
      return other.order == candidate.order;
    });
    if (!known) kept.push_back(std::move(candidate));
  }
  *candidates = std::move(kept);
}

// The number of micro-batches that are enough to see a steady state.
int32_t enough_micro_batches(const Workload& workload) {
  return std::max(3 * workload.workers, 2 * workload.stages / std::max(1, workload.workers) + 8);
}

}  // namespace

void check_finite_total(const Workload& workload) {
  double total = 0.0;
  for (const auto& costs : workload.cost) {
    for (const double cost : costs) total += cost * static_cast<double>(workload.micro_batches);
  }
  for (const double takes : workload.activation_takes) total += takes;
  for (const double takes : workload.gradient_takes) total += takes;
  for (const auto& skips : workload.skips_into) {
    for (const Workload::Skip& skip : skips) total += skip.activation_takes + skip.gradient_takes;
  }
  if (std::isfinite(total)) return;
  throw std::invalid_argument(
      "the costs of all actions add up to more than a double holds; give them in a larger unit");
}

std::optional<Order> stretched(const Workload& fewer, const Order& order, const Workload& more,
                               Timing* timing) {
  const int32_t periods = more.micro_batches - fewer.micro_batches;
  Order result(order.size());
  std::optional<Order> best;
  double least = kNever;
  // The part to repeat is looked for from several places near the middle, because other workers
  // wait if a worker repeats its part earlier than its neighbor.
  for (const double where : {0.5, 0.4, 0.6}) {
    bool all = true;
    size_t looked = 0;
    for (size_t worker = 0; worker < order.size() && all; ++worker) {
      const WorkerOrder& tokens = order[worker];
      const std::vector<int32_t>& local = fewer.stages_of[worker];
      // Whether a part that has each stage's forward, first and second part once begins at `begin`.
      const auto is_period = [&](size_t begin, size_t* end) {
        std::vector<int32_t> counts(3 * local.size(), 0);
        size_t missing = counts.size();
        for (size_t k = begin; k < tokens.size() && missing > 0; ++k, ++looked) {
          const auto local_index = static_cast<size_t>(
              std::lower_bound(local.begin(), local.end(), stage_of(tokens[k])) - local.begin());
          const ActionKind kind = kind_of(tokens[k]);
          const auto add = [&](size_t part) {
            --missing;
            return ++counts[3 * local_index + part] == 1;
          };
          bool once = true;
          if (kind == ActionKind::kForward) once = add(0);
          if (kind == ActionKind::kInputGradient || kind == ActionKind::kBackward) once = add(1);
          if (once && (kind == ActionKind::kWeightGradient || kind == ActionKind::kBackward))
            once = add(2);
          if (!once) return false;
          *end = k + 1;
        }
        return missing == 0;
      };
      const auto middle = static_cast<size_t>(where * static_cast<double>(tokens.size()));
      bool found = false;
      for (size_t step = 0; step < tokens.size() && !found; ++step) {
        // The order of `begin` is middle, middle - 1, middle + 1, ...
        const size_t by = (step + 1) / 2;
        if (step % 2 == 1 ? by > middle : middle + by >= tokens.size()) continue;
        const size_t begin = step % 2 == 1 ? middle - by : middle + by;
        size_t end = begin;
        if (!is_period(begin, &end)) continue;
        found = true;
        WorkerOrder& longer = result[worker];
        longer.assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(end));
        for (int32_t k = 0; k < periods; ++k) {
          longer.insert(longer.end(), tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                        tokens.begin() + static_cast<std::ptrdiff_t>(end));
        }
        longer.insert(longer.end(), tokens.begin() + static_cast<std::ptrdiff_t>(end),
                      tokens.end());
        all = keeps_limits(more, static_cast<int32_t>(worker), longer);
        looked += longer.size();
      }
      all = all && found;
    }
    timing->count(look_work(looked));
    if (!all || !timing->run(result) || timing->makespan() >= least) continue;
    least = timing->makespan();
    best = result;
  }
  return best;
}

namespace {

// A run of optimize(): what it has found, and what is left of its budget.
class Optimizer {
 public:
  Optimizer(const Workload& workload, const Optimizing& optimizing)
      : workload_(workload),
        optimizing_(optimizing),
        timing_(workload),
        bound_(lower_bound(workload)),
        same_(1e-9 * workload.mean_cost()) {}

  std::optional<Optimized> run() {
    run_seeds();
    // The search ends here if the best seed already has the least possible makespan.
    if (proven() || stop()) return finish();
    run_fewer();
    if (result_.stopped) return finish();
    // Uneven times are used both as they are and as if all actions took the same time. A tight
    // order of forwards and input gradients for equal times is also good for uneven times; only its
    // weight gradients are placed anew.
    RuleSearch rules(workload_, optimizing_);
    const Workload even = even_times(workload_);
    RuleSearch even_rules(even, optimizing_);
    if (try_rules(&rules, &even_rules)) anneal_in_rounds(&rules);
    return finish();
  }

 private:
  static Workload even_times(Workload workload) {
    workload.cost.assign(workload.cost.size(), {1.0, 2.0, 1.0, 1.0});
    workload.activation_takes.assign(workload.cost.size(), 0.0);
    workload.gradient_takes.assign(workload.cost.size(), 0.0);
    workload.skips_into.clear();
    workload.skips_from.clear();
    return workload;
  }

  bool fits(const Order& order) {
    for (size_t worker = 0; worker < order.size(); ++worker) {
      timing_.count(look_work(order[worker].size()));
      if (!keeps_limits(workload_, static_cast<int32_t>(worker), order[worker])) return false;
    }
    return true;
  }

  void add(Candidate candidate) {
    if (candidate.makespan < kNever && fits(candidate.order)) {
      candidates_.push_back(std::move(candidate));
    }
  }

  bool stop() {
    result_.stopped = result_.stopped || (optimizing_.stop && optimizing_.stop());
    return result_.stopped;
  }

  bool proven() const {
    return std::any_of(candidates_.begin(), candidates_.end(), [&](const Candidate& candidate) {
      return candidate.makespan <= bound_ + same_;
    });
  }

  int64_t spent() const { return result_.actions + timing_.actions(); }

  void run_seeds() {
    for (size_t k = 0; k < optimizing_.seeds.size(); ++k) {
      if (!candidates_.empty() && stop()) break;
      const Order& seed = optimizing_.seeds[k];
      if (fits(seed) && timing_.run(seed)) {
        candidates_.push_back({seed, timing_.makespan(), static_cast<int32_t>(k)});
      }
    }
  }

  // If there are many micro-batches, the search first runs with fewer.
  void run_fewer() {
    const int32_t enough = enough_micro_batches(workload_);
    if (workload_.micro_batches <= enough + enough / 2) return;
    Workload fewer = workload_;
    fewer.micro_batches = enough;
    Optimizing part = optimizing_;
    part.budget = optimizing_.budget / 4 * 3;
    part.stop = [this] { return stop(); };
    for (Order& seed : part.seeds) seed = truncated(seed, workload_.stages, enough);
    const std::optional<Optimized> small = optimize(fewer, part);
    if (small) {
      result_.actions += small->actions;
      // Several short orders are tried, because not every order has a part that can be repeated,
      // and some repeat better than others.
      std::vector<const Order*> shorter = {&small->order};
      for (const Order& other : small->next_best) shorter.push_back(&other);
      for (size_t k = 0; k < shorter.size() && !stop(); ++k) {
        std::optional<Order> longer = stretched(fewer, *shorter[k], workload_, &timing_);
        if (!longer) continue;
        timing_.run(*longer);
        add({std::move(*longer), timing_.makespan(), -1});
      }
    }
    stop();
  }

  // Tries at least one rule, so that there is an order if there can be one. Returns whether the
  // search goes on.
  bool try_rules(RuleSearch* rules, RuleSearch* even_rules) {
    const auto rules_spent = [&] {
      return rules->actions() + even_rules->actions() + even_rules->order_actions();
    };
    const int64_t left = std::max<int64_t>(optimizing_.budget - result_.actions, 0);
    if (optimizing_.split) {
      for (const Order& seed : optimizing_.seeds) {
        if (rules_spent() >= left / 4 || stop()) break;
        add(rules->place_weights(seed, left / 16, 0));
      }
      keep_best(&candidates_, 8);
      constexpr size_t kMostPlaced = 3;
      const size_t placed = std::min(kMostPlaced, candidates_.size());
      for (size_t k = 0; k < placed && rules_spent() < left && !stop(); ++k) {
        add(rules->place_weights(Order(candidates_[k].order), left / 40,
                                 left / 50 / static_cast<int64_t>(placed)));
      }
    }
    constexpr int32_t kStarts = 8;
    bool goes_on = true;
    for (int32_t number = 0; goes_on && number < kStarts; ++number) {
      if (!candidates_.empty() && rules_spent() >= left) break;
      const bool as_they_are = number % 2 == 0 || !optimizing_.split;
      Candidate candidate = as_they_are ? rules->run(number / 2, left / 4 / kStarts)
                                        : even_rules->run(number / 2, left / 4 / kStarts);
      if (!as_they_are && candidate.makespan < kNever && !stop()) {
        candidate = rules->place_weights(Order(candidate.order), left / 40, left / 80);
      }
      add(std::move(candidate));
      goes_on = !stop() && !proven();
    }
    result_.actions += rules_spent() + rules->order_actions();
    return goes_on;
  }

  // Anneals in rounds that begin with each of the best orders in turn. A round longer than
  // kLongRound hardly finds more. So a larger budget gives more rounds. Every other one of these
  // additional rounds begins with a new order, because the best orders are much alike.
  void anneal_in_rounds(RuleSearch* rules) {
    constexpr size_t kKept = 4;
    constexpr int32_t kRounds = 6;
    constexpr int64_t kLongRound = 50'000;  // in runs of the order
    constexpr int64_t kLeastLong = 10'000'000;
    const int64_t for_changes = optimizing_.budget - spent();
    const int64_t longest =
        std::max(kLongRound * 3 * workload_.stages * workload_.micro_batches, kLeastLong);
    const int64_t for_round = std::min(for_changes / kRounds, longest);
    Random random(1);
    for (int32_t round = 0;
         spent() < optimizing_.budget && (round < kRounds || for_round == longest); ++round) {
      keep_best(&candidates_, kKept);
      if (candidates_.empty() || stop() || proven()) break;
      // The first rounds have the same budget, even if the last runs of earlier rounds have taken
      // more than theirs.
      const int64_t budget =
          round < kRounds ? for_round : std::min(for_round, optimizing_.budget - spent());
      // Every other round begins with the best order.
      Candidate candidate = candidates_[static_cast<size_t>(
          round % 2 == 0 ? 0 : (round / 2) % static_cast<int32_t>(candidates_.size()))];
      const double before = candidate.makespan;
      const bool is_new = round >= kRounds && round % 2 == 1;
      if (is_new) {
        const int64_t rules_before = rules->actions() + rules->order_actions();
        Candidate start = rules->drawn(&random);
        result_.actions += rules->actions() + rules->order_actions() - rules_before;
        if (start.makespan == kNever || !fits(start.order)) continue;
        candidate.order = std::move(start.order);
      }
      candidate.makespan = anneal_round(round, is_new, budget, &candidate.order);
      if (candidate.makespan >= before) continue;
      candidate.seed = -1;
      candidates_.push_back(std::move(candidate));
    }
  }

  // Returns the makespan of the order that the round has made of `order`.
  double anneal_round(int32_t round, bool is_new, int64_t budget, Order* order) {
    Annealing annealing;
    annealing.seed = static_cast<uint64_t>(round) + 1;
    annealing.budget = budget;
    annealing.stop = [this] { return stop(); };
    annealing.bound = bound_;
    annealing.joins = optimizing_.split;
    if (is_new) {
      annealing.hot = 1.0;
    } else if (round % 3 != 0) {
      // Two of three rounds first anneal with slightly different costs. If many actions take the
      // same time, most changes of an order change no time. With the different costs they do, so
      // the search sees which changes help.
      const Workload other = different_costs(workload_, round % 3 == 2);
      Timing other_timing(other);
      annealing.bound = 0.0;
      annealing.budget = annealing.budget / 2;
      anneal(other, annealing, &other_timing, order);
      result_.actions += other_timing.actions();
      annealing.bound = bound_;
      annealing.hot = 0.1;
    }
    return anneal(workload_, annealing, &timing_, order);
  }

  static Workload different_costs(Workload other, bool is_longer) {
    const double weight = is_longer ? 1.1 : 0.9;
    for (auto& cost : other.cost) cost[static_cast<size_t>(ActionKind::kWeightGradient)] *= weight;
    for (size_t s = 0; s + 1 < other.worker_of.size() && is_longer; ++s) {
      if (other.worker_of[s] == other.worker_of[s + 1]) continue;
      other.activation_takes[s + 1] += 0.05 * other.mean_cost();
      other.gradient_takes[s] += 0.05 * other.mean_cost();
    }
    return other;
  }

  std::optional<Optimized> finish() {
    if (candidates_.empty()) {
      Candidate last{one_at_a_time(workload_)};
      if (timing_.run(last.order)) last.makespan = timing_.makespan();
      add(std::move(last));
    }
    keep_best(&candidates_, 4);
    if (candidates_.empty()) return std::nullopt;
    for (size_t k = 1; k < candidates_.size(); ++k) {
      result_.next_best.push_back(std::move(candidates_[k].order));
    }
    result_.order = std::move(candidates_.front().order);
    result_.makespan = candidates_.front().makespan;
    result_.seed = candidates_.front().seed;
    result_.actions += timing_.actions();
    return std::move(result_);
  }

  const Workload& workload_;
  const Optimizing& optimizing_;
  Timing timing_;
  const double bound_;  // no order is shorter
  const double same_;   // how much two equal times may differ by rounding
  std::vector<Candidate> candidates_;
  Optimized result_;
};

}  // namespace

std::optional<Optimized> optimize(const Workload& workload, const Optimizing& optimizing) {
  check_finite_total(workload);
  return Optimizer(workload, optimizing).run();
}

}  // namespace gpipe::internal
