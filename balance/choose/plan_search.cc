#include "balance/choose/plan_search.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "balance/choose/fitting_cut.h"
#include "balance/choose/order_search.h"
#include "balance/choose/plan_alternatives.h"
#include "balance/choose/profiled_schedule.h"
#include "balance/cut/move_cuts.h"
#include "balance/cut/pieces.h"
#include "balance/step/cut_costs.h"
#include "gpipe/placement.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/schedule/search/search.h"

namespace gpipe::balance {
namespace {

// A candidate is better only if its predicted step is shorter by more than this share, so that
// rounding does not decide.
constexpr double kFaster = 1e-9;
// The simulated actions of a search without a given budget.
constexpr int64_t kLeastBudget = 3'000'000;
// A setting with at most this many cuts and modes is searched exhaustively.
constexpr double kExhaustive = 2000;
// The number of settings that are refined by moving cuts and modes: the choice and the ones
// reported beside it.
constexpr size_t kRefined = 12;
// The numbers of micro-batches for which costly schedules are made.
constexpr size_t kCostlyChunkings = 2;
// The number of placements for which an order is searched, and the simulated actions of each
// search.
constexpr size_t kSearchedOrders = 2;
constexpr int64_t kSearchBudget = 20'000'000;
// An order search looks at some orders in any case. If its budget is less than this many runs of an
// order, it would exceed the budget and is left out.
constexpr int64_t kLeastRuns = 200;
constexpr int64_t kNoLimit = int64_t{1} << 60;

[[noreturn]] void fail(const std::string& text) { throw std::invalid_argument("plan: " + text); }

// Whether making the schedule is itself a search for its costs.
bool is_costly(const std::string& name) {
  return name == "zb-h2" || name == "zb-v" || name == "v-half" || name == "v-min" ||
         name == "dualpipe-v";
}

// Whether `a` is better than `b`: it fits or exceeds its devices less; then its step is shorter;
// then it takes less memory.
bool is_better(const PlanCandidate& a, const PlanCandidate& b) {
  if (a.fits() != b.fits()) return a.fits();
  if (!a.fits() && a.excess != b.excess) return a.excess < b.excess;
  if (a.step < b.step * (1 - kFaster)) return true;
  if (b.step < a.step * (1 - kFaster)) return false;
  return a.excess < b.excess;
}

class CandidateSearch {
 public:
  explicit CandidateSearch(const PlanProblem& problem)
      : problem_(problem),
        layers_(static_cast<int64_t>(problem.chunkings.front().profile.layers.size())),
        pieces_(layers_, problem.machine.keep_together, "plan: ") {
    if (problem.devices > pieces_.size()) {
      fail(std::to_string(problem.devices) + " devices, but the model has " +
           std::to_string(pieces_.size()) +
           " layers that may be separated, and a device needs one; give " +
           std::to_string(pieces_.size()) + " devices or fewer");
    }
  }

  PlanSearch run() {
    add_settings();
    // Each setting starts with the cuts that are found at once. Costly schedules are made only for
    // the best numbers of micro-batches.
    exhaustive_ = true;
    for (PlanSetting& setting : cheap_) begin(setting);
    add_costly();
    for (PlanSetting& setting : costly_) begin(setting);
    at_once_ = spent_;
    refine_best();
    search_orders();

    PlanSearch result;
    result.tried = spent_ - at_once_;
    sort();
    result.best = found_.front();
    for (size_t k = 1; k < found_.size(); ++k) {
      if (found_[k].fits() == result.best.fits()) result.others.push_back(found_[k]);
    }
    result.alternatives = plan_alternatives(
        problem_, pieces_, found_,
        [this](const PlanSetting& setting, const std::vector<int64_t>& balance,
               const std::vector<Checkpoint>& modes) { return predict(setting, balance, modes); });
    result.examined = examined_;
    result.exhaustive = exhaustive_;
    return result;
  }

 private:
  void tell(const std::string& note) const {
    if (problem_.progress) problem_.progress(note);
  }

  int64_t micro_batches(size_t chunking) const {
    return static_cast<int64_t>(problem_.chunkings[chunking].sizes.size());
  }

  Schedule named(size_t chunking, const std::string& name, int64_t per_device) const {
    return profiled_schedule(name, problem_.devices, per_device, micro_batches(chunking),
                             problem_.chunkings[chunking].profile, problem_.machine);
  }

  void add(size_t chunking, const std::string& name, int64_t per_device,
           std::vector<PlanSetting>& settings) {
    if (per_device > pieces_.size() / problem_.devices) return;
    const int64_t stages = problem_.devices * per_device;
    if (stages > Schedule::kMostCells / micro_batches(chunking)) return;
    tell(name);
    settings.push_back({chunking, name, per_device, named(chunking, name, per_device)});
  }

  void add_settings() {
    for (size_t chunking = 0; chunking < problem_.chunkings.size(); ++chunking) {
      bool alone = false;  // whether the schedule of a single stage on a single device was added
      for_each_schedule(problem_, [&](const std::string& name, int64_t v) {
        // A single stage on a single device runs the same under every name: 1F1B stands for all.
        if (problem_.devices == 1 && v == 1) {
          if (!alone) add(chunking, "1f1b", v, cheap_);
          alone = true;
          return;
        }
        if (!is_costly(name)) add(chunking, name, v, cheap_);
      });
    }
    if (!cheap_.empty()) return;
    // The user allows costly schedules only.
    for (size_t chunking = 0; chunking < problem_.chunkings.size(); ++chunking)
      add_costly(chunking);
    if (!costly_.empty()) return;
    fail("no schedule to choose from has its stages on " + std::to_string(problem_.devices) +
         " devices with " + std::to_string(pieces_.size()) +
         " layers that may be separated and the stages_per_device that were given" +
         stages_that_schedules_have(problem_, pieces_.size() / problem_.devices) +
         "; add one of these, or 1f1b and 1");
  }

  void add_costly(size_t chunking) {
    for_each_schedule(problem_, [&](const std::string& name, int64_t v) {
      if ((problem_.devices > 1 || v > 1) && is_costly(name)) add(chunking, name, v, costly_);
    });
  }

  void add_costly() {
    if (!costly_.empty()) return;
    sort();
    std::vector<size_t> chunkings;
    for (const PlanSetting& found : found_) {
      if (chunkings.size() == kCostlyChunkings) break;
      if (std::find(chunkings.begin(), chunkings.end(), found.cut) == chunkings.end())
        chunkings.push_back(found.cut);
    }
    for (const size_t chunking : chunkings) add_costly(chunking);
    if (!costly_.empty() && chunkings.size() < problem_.chunkings.size()) exhaustive_ = false;
  }

  // --- predictions

  ExplainOptions options_of(const PlanSetting& setting, std::vector<Checkpoint> modes) const {
    return explain_options(problem_, setting.cut, *setting.schedule, std::move(modes));
  }

  int64_t cost_of(const PlanSetting& setting) const {
    return 3 * setting.schedule->stages() * setting.schedule->micro_batches();
  }
  int64_t cost_of_thriftiest(const PlanSetting& setting) const {
    const auto modes = static_cast<int64_t>(problem_.checkpoints.size());
    return ((1 + setting.stages_per_device) * modes + 1) * cost_of(setting);
  }
  // The rest of a given budget.
  int64_t left() const { return problem_.budget - (spent_ - at_once_); }

  PlanCandidate predict(const PlanSetting& setting, const std::vector<int64_t>& balance,
                        const std::vector<Checkpoint>& modes) {
    ++examined_;
    spent_ += cost_of(setting);
    if (examined_ % 16 == 0) tell(setting.schedule_name);
    const Explanation explanation =
        explain(problem_.chunkings[setting.cut].profile, balance, options_of(setting, modes));
    PlanCandidate candidate{
        setting, problem_.chunkings[setting.cut].chunks, balance, modes, explanation.step,
        {},      std::numeric_limits<int64_t>::min()};
    for (size_t d = 0; d < explanation.workers.size(); ++d) {
      candidate.memory.push_back(explanation.workers[d].memory);
      const int64_t more = problem_.limits.empty()
                               ? explanation.workers[d].memory - kNoLimit
                               : explanation.workers[d].memory - problem_.limits[d];
      candidate.excess = std::max(candidate.excess, more);
    }
    return candidate;
  }

  static void keep(PlanCandidate candidate, std::optional<PlanCandidate>& best) {
    if (!best || is_better(candidate, *best)) best = std::move(candidate);
  }

  // --- the cut and the modes of a setting

  std::vector<Checkpoint> uniform(const PlanSetting& setting, Checkpoint mode) const {
    return std::vector<Checkpoint>(static_cast<size_t>(setting.schedule->stages()), mode);
  }

  FittingCutOptions fitting_options(const PlanSetting& setting, Checkpoint mode) const {
    FittingCutOptions options;
    for (int64_t j = 0; j < setting.schedule->stages(); ++j) {
      const auto device = static_cast<size_t>(setting.schedule->worker_of(j));
      // Stages of one device share its memory equally here.
      options.limits.push_back(
          problem_.limits.empty() ? kNoLimit : problem_.limits[device] / setting.stages_per_device);
    }
    options.keep_together = problem_.machine.keep_together;
    options.explain = options_of(setting, uniform(setting, mode));
    return options;
  }

  // Finds the modes with which the cut takes the least memory. The modes of one device do not
  // change the memory of another. So each attempt changes the modes of all devices, and each device
  // keeps its own best.
  PlanCandidate thriftiest(const PlanSetting& setting, const std::vector<int64_t>& balance) {
    const std::vector<std::vector<int64_t>> own = stages_of_devices(setting);
    std::vector<Checkpoint> modes = uniform(setting, problem_.checkpoints.front());
    std::vector<int64_t> least(own.size(), std::numeric_limits<int64_t>::max());
    const auto attempt = [&](const std::function<Checkpoint(size_t device, size_t k)>& mode_of) {
      std::vector<Checkpoint> tried = modes;
      for (size_t d = 0; d < own.size(); ++d) {
        for (size_t k = 0; k < own[d].size(); ++k) {
          tried[static_cast<size_t>(own[d][k])] = mode_of(d, k);
        }
      }
      const PlanCandidate candidate = predict(setting, balance, tried);
      for (size_t d = 0; d < own.size(); ++d) {
        if (candidate.memory[d] >= least[d]) continue;
        least[d] = candidate.memory[d];
        for (const int64_t j : own[d]) {
          modes[static_cast<size_t>(j)] = tried[static_cast<size_t>(j)];
        }
      }
    };
    const size_t count = problem_.checkpoints.size();
    for (const Checkpoint mode : problem_.checkpoints) {
      attempt([&](size_t, size_t) { return mode; });
    }
    // After that, the modes change for one stage of each device at a time.
    for (size_t changed = 0; setting.stages_per_device > 1 && changed < own.front().size();
         ++changed) {
      for (size_t m = 0; m < count; ++m) {
        attempt([&](size_t d, size_t k) {
          return k == changed ? problem_.checkpoints[m] : modes[static_cast<size_t>(own[d][k])];
        });
      }
    }
    return predict(setting, balance, modes);
  }

  std::vector<std::vector<int64_t>> stages_of_devices(const PlanSetting& setting) const {
    std::vector<std::vector<int64_t>> own(static_cast<size_t>(problem_.devices));
    for (int64_t j = 0; j < setting.schedule->stages(); ++j) {
      own[static_cast<size_t>(setting.schedule->worker_of(j))].push_back(j);
    }
    return own;
  }

  double count_cuts(const PlanSetting& setting) const {
    double count = 1;
    for (int64_t k = 1; k < setting.schedule->stages(); ++k) {
      count *= static_cast<double>(pieces_.size() - k) / static_cast<double>(k);
    }
    return count;
  }

  // The number of cuts times the number of modes.
  double choices(const PlanSetting& setting) const {
    double count = count_cuts(setting);
    for (int64_t j = 0; j < setting.schedule->stages() && count <= kExhaustive; ++j) {
      count *= static_cast<double>(problem_.checkpoints.size());
    }
    return count;
  }

  void begin(const PlanSetting& setting) {
    std::optional<PlanCandidate> best;
    if (choices(setting) <= kExhaustive &&
        choices(setting) * cost_of(setting) <= kLeastBudget / 4) {
      std::vector<int64_t> balance;
      std::vector<Checkpoint> modes;
      for_each_cut(setting, 0, balance, [&] { try_all_modes(setting, balance, modes, best); });
    } else {
      exhaustive_ = false;
      for (const Checkpoint mode : problem_.checkpoints) {
        const std::vector<Checkpoint> modes = uniform(setting, mode);
        const Profile& profile = problem_.chunkings[setting.cut].profile;
        PlanCandidate even =
            predict(setting,
                    even_cut(profile, setting.schedule->stages(), problem_.machine.keep_together,
                             mode != Checkpoint::kNever),
                    modes);
        const bool fits = even.fits();
        keep(std::move(even), best);
        if (fits) continue;
        const FittingCutOptions options = fitting_options(setting, mode);
        const std::optional<std::vector<int64_t>> fitting = fastest_fitting_cut(profile, options);
        if (fitting) keep(predict(setting, *fitting, modes), best);
        if (!best->fits()) keep(thriftiest(setting, smallest_cut(profile, options)), best);
      }
      open_.insert(found_.size());
    }
    found_.push_back(std::move(*best));
  }

  // Calls `visit` for each cut whose first partitions are those in `balance`; they hold the layers
  // before `first`.
  void for_each_cut(const PlanSetting& setting, int64_t first, std::vector<int64_t>& balance,
                    const std::function<void()>& visit) {
    const int64_t left = setting.schedule->stages() - static_cast<int64_t>(balance.size());
    if (left == 1) {
      balance.push_back(layers_ - first);
      visit();
      balance.pop_back();
      return;
    }
    for (int64_t past = first + 1; past + left - 1 <= layers_; ++past) {
      if (!pieces_.may_cut(past)) continue;
      balance.push_back(past - first);
      for_each_cut(setting, past, balance, visit);
      balance.pop_back();
    }
  }

  void try_all_modes(const PlanSetting& setting, const std::vector<int64_t>& balance,
                     std::vector<Checkpoint>& modes, std::optional<PlanCandidate>& best) {
    if (modes.size() == balance.size()) {
      keep(predict(setting, balance, modes), best);
      return;
    }
    for (const Checkpoint mode : problem_.checkpoints) {
      modes.push_back(mode);
      try_all_modes(setting, balance, modes, best);
      modes.pop_back();
    }
  }

  // If nothing fits, tries all cuts for the least memory, in settings that have few of them. The
  // nearest setting comes first, as the total work is limited.
  void try_all_cuts_for_memory() {
    if (found_.front().fits()) return;
    // Half of a given budget remains for refining the nearest.
    const int64_t until = spent_ + (problem_.budget > 0 ? left() / 2 : 2 * kLeastBudget);
    for (const size_t k : open_) {
      const PlanSetting& setting = found_[k];
      const double work = count_cuts(setting) * static_cast<double>(cost_of_thriftiest(setting));
      if (work > static_cast<double>(std::min(until - spent_, kLeastBudget / 4))) continue;
      std::optional<PlanCandidate> best = found_[k];
      std::vector<int64_t> balance;
      for_each_cut(setting, 0, balance, [&] { keep(thriftiest(setting, balance), best); });
      found_[k] = std::move(*best);
    }
    sort();
  }

  // Moves cuts and changes modes while that makes the candidate better, until spent_ reaches
  // `until`.
  void refine(PlanCandidate& best, int64_t until) {
    const auto attempt = [&](const std::vector<int64_t>& balance,
                             const std::vector<Checkpoint>& modes) {
      // If nothing fits, a moved cut gets the modes that take the least memory on it.
      const bool least = !best.fits() && balance != best.balance;
      const int64_t takes = least ? cost_of_thriftiest(best) : cost_of(best);
      if (spent_ + takes > until) return false;
      PlanCandidate candidate = least ? thriftiest(best, balance) : predict(best, balance, modes);
      if (!is_better(candidate, best)) return false;
      best = std::move(candidate);
      return true;
    };
    CutMoves moves;
    moves.distance = first_distance(layers_, best.schedule->stages());
    moves.goes_on = [&] { return spent_ < until; };
    moves.is_better = [&](const std::vector<int64_t>& balance) {
      return attempt(balance, best.checkpoints);
    };
    moves.change_others = [&] {
      bool better = false;
      for (size_t j = 0; j < best.checkpoints.size(); ++j) {
        for (const Checkpoint mode : problem_.checkpoints) {
          if (best.checkpoints[j] == mode) continue;
          std::vector<Checkpoint> modes = best.checkpoints;
          modes[j] = mode;
          better = attempt(best.balance, modes) || better;
        }
      }
      return better;
    };
    move_cuts(best.balance, pieces_, moves);
  }

  // Sorts found_, the best first; equal candidates keep their order.
  void sort() {
    std::vector<size_t> order(found_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return is_better(found_[a], found_[b]); });
    std::vector<PlanCandidate> sorted;
    std::set<size_t> open;
    for (const size_t k : order) {
      if (open_.count(k) > 0) open.insert(sorted.size());
      sorted.push_back(std::move(found_[k]));
    }
    found_ = std::move(sorted);
    open_ = std::move(open);
  }

  void refine_best() {
    sort();
    try_all_cuts_for_memory();
    const size_t count = std::min(kRefined, found_.size());
    // Half of a given budget is left for searching orders.
    int64_t budget = searches_orders() ? left() / 2 : left();
    auto shares = static_cast<int64_t>(count) + 1;  // the first setting may take two shares
    if (problem_.budget == 0) {
      budget = kLeastBudget;
      shares = static_cast<int64_t>(count);
      for (size_t k = 0; k < count; ++k) {
        if (open_.count(k) == 0) continue;
        // The budget must be enough for a few rounds of all changes.
        const int64_t changes = 8 * found_[k].schedule->stages();
        budget =
            std::max(budget, 3 * static_cast<int64_t>(count) * changes * cost_of(found_[k]) / 2);
      }
    }
    for (size_t k = 0; k < count; ++k) {
      if (open_.count(k) == 0) continue;
      const int64_t share = budget / shares;
      refine(found_[k], spent_ + (k == 0 ? 2 * share : share));
    }
  }

  // --- orders of their own

  bool searches_orders() const {
    return allows_schedule(problem_, kSearchedOrder) && problem_.devices > 1;
  }

  void search_orders() {
    if (!searches_orders()) return;
    sort();
    std::vector<std::tuple<size_t, std::vector<int64_t>>> known;  // micro-batches, placement
    const std::vector<PlanCandidate> before = found_;
    for (const PlanCandidate& candidate : before) {
      if (known.size() == kSearchedOrders) return;
      const auto key =
          std::make_tuple(candidate.cut, candidate.schedule->placement().worker_of_stage());
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      // If a budget was given, each search gets an equal share of what is left. A third of the
      // share is kept for cuts that suit the order.
      const bool given = problem_.budget > 0;
      const int64_t share = left() / static_cast<int64_t>(kSearchedOrders - known.size());
      const int64_t budget = given ? std::min(kSearchBudget, 2 * share / 3) : kSearchBudget;
      known.push_back(key);
      if (given && budget < kLeastRuns * cost_of(candidate)) continue;
      std::optional<SearchResult> order;
      bool in_callback = false;
      try {
        SearchOptions options =
            order_search(problem_, candidate,
                         explain(problem_.chunkings[candidate.cut].profile, candidate.balance,
                                 options_of(candidate, candidate.checkpoints)));
        options.budget = budget;
        if (problem_.progress) {
          options.stop = [&] {
            in_callback = true;
            tell(kSearchedOrder);
            in_callback = false;
            return false;
          };
        }
        order = gpipe::search(options);
      } catch (const std::invalid_argument&) {
        if (in_callback) throw;
        continue;  // as the search counts memory, not even one micro-batch fits
      }
      spent_ += order->actions;
      // If the best order is that of a generator, it was tried before.
      if (order->origin != kSearchedOrder) continue;
      PlanSetting searched = candidate;
      searched.schedule_name = kSearchedOrder;
      searched.schedule = order->schedule;
      PlanCandidate best = predict(searched, candidate.balance, candidate.checkpoints);
      refine(best, spent_ + (given ? share / 4 : kLeastBudget / 10));
      if (is_better(best, candidate)) found_.push_back(std::move(best));
    }
  }

  const PlanProblem& problem_;
  const int64_t layers_;
  const Pieces pieces_;
  std::vector<PlanSetting> cheap_;
  std::vector<PlanSetting> costly_;
  std::vector<PlanCandidate> found_;
  std::set<size_t> open_;  // indices in found_ of settings of which not all cuts were tried
  int64_t examined_ = 0;
  int64_t spent_ = 0;    // simulated actions
  int64_t at_once_ = 0;  // the part of spent_ for the cuts that are found at once
  bool exhaustive_ = false;
};

}  // namespace

PlanSearch search_plan(const PlanProblem& problem) {
  check_plan_problem(problem);
  return CandidateSearch(problem).run();
}

}  // namespace gpipe::balance
