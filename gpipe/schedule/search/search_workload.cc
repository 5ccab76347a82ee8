// The options of a search, and what a given schedule takes under them.
#include "gpipe/schedule/search/search_workload.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>

#include "gpipe/schedule/follows_at_once.h"
#include "gpipe/schedule/search/slack.h"
#include "text/digits.h"

namespace gpipe {
namespace {

using internal::Timing;
using internal::Workload;
using internal::workload_of;

[[noreturn]] void fail(const std::string& what) { throw std::invalid_argument("search: " + what); }

// Returns a value for each of `count` units. `given` has either one value for all, or one for each.
template <typename Value>
std::vector<Value> each(std::vector<Value> given, int64_t count, const char* what,
                        const char* unit) {
  if (given.size() == 1) given.assign(static_cast<size_t>(count), given.front());
  if (static_cast<int64_t>(given.size()) != count) {
    fail(std::string(what) + " has " + std::to_string(given.size()) + " values for " +
         std::to_string(count) + " " + unit + ": give 1 or " + std::to_string(count));
  }
  return given;
}

void check(double value, const char* what) {
  if (std::isfinite(value) && value >= 0.0) return;
  fail(std::string(what) + " must be finite and at least 0, got " + text::exact(value));
}

std::vector<double> transfers(const std::vector<double>& given, int64_t stages, const char* what) {
  const int64_t count = std::max<int64_t>(stages - 1, 1);
  std::vector<double> all =
      each(given.empty() ? std::vector<double>{0.0} : given, count, what, "boundaries");
  for (const double value : all) check(value, what);
  return all;
}

// Checks that the options fit the schedule, and that it has every action of a step once.
ScheduleFacts check_matches(const char* who, const Schedule& schedule,
                            const SearchOptions& options) {
  schedule.check(options.placement);
  if (schedule.micro_batches() != options.micro_batches) {
    throw std::invalid_argument(std::string(who) + ": the schedule has " +
                                std::to_string(schedule.micro_batches()) +
                                " micro-batches, SearchOptions::micro_batches is " +
                                std::to_string(options.micro_batches) + "; give the schedule's");
  }
  internal::check_whole_step(schedule, std::string(who) + ": ");
  for (const std::vector<Action>& actions : schedule.table()) {
    const auto moves = [](const Action& action) { return !computes(action.kind); };
    const auto found = std::find_if(actions.begin(), actions.end(), moves);
    if (found == actions.end()) continue;
    throw std::invalid_argument(std::string(who) +
                                ": the schedule has offloads, which the search does not count: " +
                                found->to_text() + "; give without_offloads(schedule)");
  }
  return schedule.verify(Sends::kBuffered);
}

}  // namespace

Workload internal::workload_of(const SearchOptions& options) {
  if (options.objective != Objective::kMakespan && options.objective != Objective::kSlack) {
    fail("objective must be one of kMakespan and kSlack, got the number " +
         std::to_string(static_cast<int>(options.objective)));
  }
  const int64_t stages = options.placement.stages();
  const int64_t workers = options.placement.workers();
  if (options.micro_batches < 1) {
    fail("micro_batches must be at least 1, got " + std::to_string(options.micro_batches) +
         "; the least is 1");
  }
  if (stages > Schedule::kMostCells / options.micro_batches) {
    fail("at most 2^24 cells (stages x micro-batches), got " + std::to_string(stages) + " x " +
         std::to_string(options.micro_batches));
  }
  constexpr double kNone = std::numeric_limits<double>::infinity();
  Workload workload = Workload::uniform(options.placement, options.micro_batches, {}, 0.0, kNone);
  const std::vector<StageCost> costs = each(options.costs, stages, "costs", "stages");
  const std::vector<double> up =
      transfers(options.activation_transfer, stages, "activation_transfer");
  const std::vector<double> down =
      transfers(options.gradient_transfer, stages, "gradient_transfer");
  for (size_t s = 0; s < costs.size(); ++s) {
    workload.cost[s] = {costs[s].forward, costs[s].backward, costs[s].input_gradient,
                        costs[s].weight_gradient};
    for (const double cost : workload.cost[s]) check(cost, "costs");
    if (s + 1 == costs.size() || workload.worker_of[s] == workload.worker_of[s + 1]) continue;
    workload.activation_takes[s + 1] = up[s];
    workload.gradient_takes[s] = down[s];
  }
  for (const SearchSkip& skip : options.skips) {
    if (skip.from_stage < 0 || skip.to_stage <= skip.from_stage || skip.to_stage >= stages) {
      fail("a skip goes from stage " + std::to_string(skip.from_stage) + " to stage " +
           std::to_string(skip.to_stage) + "; it goes to a later one of the stages 0 to " +
           std::to_string(stages - 1));
    }
    check(skip.activation_transfer, "a skip's activation_transfer");
    check(skip.gradient_transfer, "a skip's gradient_transfer");
    const auto from = static_cast<int32_t>(skip.from_stage);
    const auto to = static_cast<int32_t>(skip.to_stage);
    // The value of a skip within one worker takes no time.
    if (options.placement.worker_of(from) == options.placement.worker_of(to)) continue;
    workload.add_skip(from, to, skip.activation_transfer, skip.gradient_transfer);
  }
  workload.held = each(options.activation_bytes, stages, "activation_bytes", "stages");
  workload.waiting = each(options.waiting_bytes, stages, "waiting_bytes", "stages");
  for (const double bytes : workload.held) check(bytes, "activation_bytes");
  for (const double bytes : workload.waiting) check(bytes, "waiting_bytes");
  double all = 0.0;
  for (size_t s = 0; s < workload.held.size(); ++s) {
    all += std::max(workload.held[s], workload.waiting[s]) *
           static_cast<double>(options.micro_batches);
  }
  if (!std::isfinite(all)) {
    fail(
        "activation_bytes and waiting_bytes of all stages and micro-batches add up to more than a "
        "double holds; give them, and memory_limit, in a larger unit");
  }
  if (!options.memory_limit.empty()) {
    workload.limit = each(options.memory_limit, workers, "memory_limit", "workers");
    for (const double bytes : workload.limit) {
      if (!(bytes >= 0.0)) fail("memory_limit must be at least 0, got " + text::exact(bytes));
    }
  }
  if (!(options.tolerance >= 0.0) || !std::isfinite(options.tolerance)) {
    fail("tolerance must be a finite number of at least 0, got " + text::exact(options.tolerance));
  }
  if (options.budget < 0) {
    fail("budget must be at least 0, got " + std::to_string(options.budget));
  }
  return workload;
}

SimulateOptions simulate_options(const SearchOptions& options) {
  const Workload workload = workload_of(options);
  SimulateOptions result;
  result.action = stage_costs(each(options.costs, workload.stages, "costs", "stages"));
  result.transfer = [workload, routes = search_routes(options),
                     skips = options.skips](const Transfer& transfer) {
    for (const Action& action : {transfer.producer, transfer.consumer}) {
      if (action.stage >= 0 && action.stage < workload.stages) continue;
      throw std::out_of_range("simulate_options: there is no transfer from or to the stage of " +
                              action.to_text() + ", the options have " +
                              std::to_string(workload.stages) + " stages, counted from 0");
    }
    const auto from = static_cast<size_t>(transfer.producer.stage);
    const auto to = static_cast<size_t>(transfer.consumer.stage);
    // The caller's own routes may have skips that are not in the options. Transfers over such skips
    // take the time of the boundary if their stages are neighbors, and otherwise no time.
    const bool known = static_cast<int64_t>(transfer.route) < routes.size();
    if (const std::optional<size_t> skip = known ? routes.skip(transfer.route) : std::nullopt) {
      return to > from ? skips[*skip].activation_transfer : skips[*skip].gradient_transfer;
    }
    if (to == from + 1) return workload.activation_takes[to];
    if (from == to + 1) return workload.gradient_takes[to];
    return 0.0;
  };
  return result;
}

Routes search_routes(const SearchOptions& options) {
  (void)workload_of(options);  // throws if the options make no sense
  std::vector<Route> skips;
  for (const SearchSkip& skip : options.skips) {
    skips.push_back(
        {static_cast<int32_t>(skip.from_stage), static_cast<int32_t>(skip.to_stage), ""});
  }
  return Routes::create(options.placement.stages(), std::move(skips));
}

std::vector<double> peak_bytes(const Schedule& schedule, const SearchOptions& options) {
  const Workload workload = workload_of(options);
  check_matches("peak_bytes", schedule, options);
  std::vector<double> peaks;
  for (const auto& order : internal::to_order(schedule)) {
    peaks.push_back(internal::peak_memory(workload, order));
  }
  return peaks;
}

double link_slack(const Schedule& schedule, const SearchOptions& options, double deadline) {
  const Workload workload = workload_of(options);
  if (!check_matches("link_slack", schedule, options).ascending) {
    throw std::invalid_argument(
        "link_slack: the schedule is not ascending (ScheduleFacts); relabeled() may help");
  }
  if (std::isnan(deadline)) {
    throw std::invalid_argument("link_slack: the deadline is not a number; give a time");
  }
  Timing timing(workload);
  return internal::slack_of(&timing, internal::to_order(schedule), deadline, options.stop);
}

}  // namespace gpipe
