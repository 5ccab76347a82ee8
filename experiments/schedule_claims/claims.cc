#include "experiments/schedule_claims/claims.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "experiments/schedule_claims/paired_idle.h"
#include "gpipe/schedule/search/generators.h"

namespace gpipe::experiments {
namespace {

constexpr char kInterleaving[] = "Narayanan et al. 2021, section 2.2: (p - 1) / (v m)";
constexpr char kZeroBubbleFormula[] = "Qi et al. 2023, the table of their repository";
constexpr char kZeroBubbleTable[] = "Qi et al. 2023, table 5, with the times of table 9";
constexpr char kDualPipe[] =
    "DeepSeek-AI 2024, the table of their repository: (PP/2 - 1)(F&B + B - 3W)";
constexpr char kRanking[] = "Barley et al. 2026 (arXiv 2605.24006), abstract";

StageCost per_stage(const StageCost& cost, int64_t v) {
  const auto stages = static_cast<double>(v);
  return {cost.forward / stages, cost.backward / stages, cost.input_gradient / stages,
          cost.weight_gradient / stages};
}

Simulation run(const Schedule& schedule, const StageCost& worker_cost, double transfer) {
  const StageCost cost = per_stage(worker_cost, schedule.stages() / schedule.workers());
  return simulate(schedule, {uniform_cost(cost), [=](const Transfer&) { return transfer; }});
}

// The span of the worker that idles longest between its first action and its last.
WorkerSpan longest_idle(const Simulation& run) {
  WorkerSpan longest;
  for (size_t worker = 0; worker < run.workers.size(); ++worker) {
    const std::vector<TimedAction>& actions = run.workers[worker];
    const WorkerSpan span{actions.back().end - actions.front().start, run.busy[worker]};
    if (span.idle() > longest.idle() || longest.span == 0.0) longest = span;
  }
  return longest;
}

double of_work(const WorkerSpan& span) { return span.idle() / span.work; }

std::string four_digits(double value) { return absl::StrFormat("%.4f", value); }

StageCost costs(double forward, double input, double weight) {
  return {forward, input + weight, input, weight};
}

std::string cost_text(const StageCost& cost) {
  return absl::StrFormat("F %.4g, B %.4g (I %.4g, W %.4g)", cost.forward, cost.backward,
                         cost.input_gradient, cost.weight_gradient);
}

void add_interleaving(std::vector<Claim>& claims) {
  struct Case {
    int64_t p, v, m;
  };
  const StageCost cost = costs(1.0, 1.1, 0.7);
  for (const Case& c : {Case{8, 1, 32}, Case{8, 2, 32}, Case{8, 4, 32}, Case{4, 3, 12}}) {
    claims.push_back({absl::StrFormat("interleaved-p%d-v%d-m%d", c.p, c.v, c.m), kInterleaving,
                      absl::StrCat("m is a multiple of p; all stages take the same time, here ",
                                   cost_text(cost), "; transfers take no time"),
                      Measure::kOfWork,
                      four_digits(static_cast<double>(c.p - 1) / static_cast<double>(c.v * c.m)),
                      [c, cost]() -> Simulated {
                        return {of_work(longest_idle(run(interleaved(c.p, c.v, c.m), cost, 0)))};
                      }});
  }
}

void add_zero_bubble_formulas(std::vector<Claim>& claims) {
  constexpr int64_t kWorkers = 8;
  constexpr int64_t kMicroBatches = 24;
  constexpr double kOneFOneB = static_cast<double>(kWorkers - 1) / kMicroBatches;
  const StageCost cost = costs(1.0, 1.0, 1.0);
  const std::string equal = "F = I = W = 1; transfers take no time";
  struct Case {
    const char* name;
    const char* formula;
    double published;
    Schedule (*make)();
  };
  const Case cases[] = {
      {"1f1b", "(p - 1) / m", kOneFOneB,
       [] { return Schedule::one_f_one_b(kWorkers, kMicroBatches); }},
      {"zb-h1", "(p - 1) / 3m", kOneFOneB / 3, [] { return zb_h1(kWorkers, kMicroBatches); }},
      {"zb-h2", "0", 0.0, [] { return zb_h2(kWorkers, kMicroBatches); }},
  };
  for (const Case& c : cases) {
    claims.push_back(
        {absl::StrCat("equal-", c.name, "-p8-m24"),
         absl::StrCat(kZeroBubbleFormula, ": ", c.formula),
         absl::StrCat(equal, "; the filling before a worker's first action is not counted"),
         Measure::kOfWork, four_digits(c.published), [make = c.make, cost]() -> Simulated {
           return {of_work(longest_idle(run(make(), cost, 0)))};
         }});
  }
  claims.push_back(
      {"equal-zb-v-p8-m24", absl::StrCat(kZeroBubbleFormula, ": 0"),
       absl::StrCat(
           equal,
           "; a step less its filling, p - 1 forwards of a stage: the order that is found "
           "here is as short as any, but its workers' spans are not all without idle time"),
       Measure::kOfFilling, "0.0000", [cost]() -> Simulated {
         const double work = kMicroBatches * (cost.forward + cost.backward);
         const double filling = (kWorkers - 1) * cost.forward / 2;
         return {(run(zb_v(kWorkers, kMicroBatches), cost, 0).makespan - filling - work) / work};
       }});
}

void add_zero_bubble_table(std::vector<Claim>& claims) {
  for (const ZeroBubbleSetting& setting : zero_bubble_settings()) {
    if (setting.micro_batches != 3 * setting.workers) continue;
    const std::pair<const char*, std::string> columns[] = {{"1f1b", setting.one_f_one_b},
                                                           {"interleaved", setting.interleaved},
                                                           {"zb-h1", setting.zb_h1},
                                                           {"zb-h2", setting.zb_h2}};
    for (const auto& [schedule, published] : columns) {
      const bool loop = std::string(schedule) == "interleaved";
      claims.push_back(
          {absl::StrCat(setting.model, "-", schedule), kZeroBubbleTable,
           absl::StrFormat(
               "%s model on %d GPUs, %d micro-batches, times in ms that its authors measured: %s, "
               "transfers %.3f%s; computed, not run, there as here",
               absl::AsciiStrToUpper(setting.model), setting.workers, setting.micro_batches,
               cost_text(setting.cost), setting.transfer,
               loop ? absl::StrFormat("; %d stages a worker, a layer each",
                                      setting.interleaved_stages)
                    : ""),
           Measure::kOfSpan, published, [setting, name = std::string(schedule)]() -> Simulated {
             return {zero_bubble_rate(setting, name)};
           }});
    }
  }
}

void add_dualpipe(std::vector<Claim>& claims) {
  // The authors' drawing has 8 ranks and 20 micro-batches in both directions.
  constexpr int64_t kWorkers = 4;
  constexpr int64_t kMicroBatches = 10;
  struct Case {
    const char* name;
    double forward, input, weight;
    double pair;  // F&B
  };
  // The times are those of a stage. A worker has two stages.
  for (const Case& c :
       {Case{"equal", 1, 1, 1, 3}, Case{"uneven", 1, 1, 0.7, 2.7}, Case{"overlap", 1, 1, 1, 2.5}}) {
    const StageCost cost = costs(c.forward, c.input, c.weight);
    const double bubble = (kWorkers - 1) * (c.pair + cost.backward - 3 * c.weight);
    const WorkerSpan paired = paired_idle(kWorkers, kMicroBatches, cost, c.pair);
    const std::string times = absl::StrFormat(
        "one direction of PP = %d ranks and %d micro-batches, cut in half: %d workers of two "
        "stages; a stage's %s, with I = F; transfers take no time",
        2 * kWorkers, 2 * kMicroBatches, kWorkers, cost_text(cost));
    claims.push_back({absl::StrCat("dualpipe-", c.name), kDualPipe,
                      absl::StrFormat("%s; a forward and a backward beside it are one unit, F&B = "
                                      "%.2g%s",
                                      times, c.pair,
                                      c.pair < cost.forward + cost.backward
                                          ? ", less than both: the formula is an upper bound then"
                                          : " = F + B"),
                      Measure::kOfWork, four_digits(bubble / paired.work),
                      [cost, pair = c.pair]() -> Simulated {
                        return {of_work(paired_idle(kWorkers, kMicroBatches, cost, pair))};
                      }});
    if (c.pair < cost.forward + cost.backward) continue;
    claims.push_back(
        {absl::StrCat("dualpipe-", c.name, "-apart"), kDualPipe,
         absl::StrCat(times,
                      "; as a pipeline here runs it: forward and backward one after another, each "
                      "sending its result at once, so it idles less than the formula"),
         Measure::kOfWork, four_digits(bubble / paired.work), [cost]() -> Simulated {
           const StageCost worker = {2 * cost.forward, 2 * cost.backward, 2 * cost.input_gradient,
                                     2 * cost.weight_gradient};
           return {of_work(longest_idle(run(dualpipe_v(kWorkers, kMicroBatches), worker, 0)))};
         }});
  }
}

constexpr int64_t kRankedWorkers = 8;
constexpr int64_t kRankedMicroBatches = 16;

struct Ranked {
  const char* name;
  Schedule (*make)();
};

const Ranked kRanked[] = {
    {"gpipe", [] { return Schedule::gpipe(kRankedWorkers, kRankedMicroBatches); }},
    {"1f1b", [] { return Schedule::one_f_one_b(kRankedWorkers, kRankedMicroBatches); }},
    {"interleaved-x4", [] { return interleaved(kRankedWorkers, 4, kRankedMicroBatches); }},
    {"zb-h1", [] { return zb_h1(kRankedWorkers, kRankedMicroBatches); }},
    {"zb-interleaved-x4",
     [] { return zero_bubble_interleaved(kRankedWorkers, 4, kRankedMicroBatches); }},
    {"zb-v", [] { return zb_v(kRankedWorkers, kRankedMicroBatches); }},
    {"dualpipe-v", [] { return dualpipe_v(kRankedWorkers, kRankedMicroBatches); }},
};

double step(const Schedule& schedule, double transfer) {
  return run(schedule, costs(1, 1, 1), transfer).makespan;
}

// The shortest time of a transfer at which 1F1B is faster than the schedule, to 0.01.
std::optional<double> turn(const Schedule& schedule) {
  const Schedule plain = Schedule::one_f_one_b(kRankedWorkers, kRankedMicroBatches);
  const auto slower = [&](double transfer) {
    return step(schedule, transfer) > step(plain, transfer) + 1e-9;
  };
  double low = 0.0;
  double high = 4.0;  // in F; with longer transfers no pipeline is worth while
  if (slower(low) || !slower(high)) return std::nullopt;
  while (high - low > 0.005) {
    const double middle = (low + high) / 2;
    (slower(middle) ? high : low) = middle;
  }
  return high;
}

Simulated ranked(const Ranked& which, double transfer) {
  const Schedule schedule = which.make();
  Simulated result;
  const double own = step(schedule, transfer);
  result.value = own / step(Schedule::one_f_one_b(kRankedWorkers, kRankedMicroBatches), transfer);
  result.rank = 1 + std::count_if(std::begin(kRanked), std::end(kRanked), [&](const Ranked& other) {
                  return step(other.make(), transfer) < own - 1e-9;
                });
  if (transfer == 0) result.turns = turn(schedule);
  return result;
}

void add_ranking(std::vector<Claim>& claims) {
  for (const double transfer : {0.0, 0.5}) {
    for (const Ranked& each : kRanked) {
      claims.push_back(
          {absl::StrCat(each.name, transfer > 0 ? "-slow" : "-quick"), kRanking,
           absl::StrFormat(
               "p = 8, m = 16, F = I = W = 1, a transfer between workers takes %s; each "
               "schedule as it is made for transfers that take no time",
               transfer > 0 ? "half a forward, c = 0.5" : "no time"),
           Measure::kStep, std::string(each.name) == "gpipe" ? "1" : "",
           [each, transfer] { return ranked(each, transfer); }});
    }
  }
}

}  // namespace

std::vector<ZeroBubbleSetting> zero_bubble_settings() {
  const auto setting = [](const char* model, int64_t p, int64_t m, int64_t v, StageCost cost,
                          double transfer, const char* plain, const char* loop, const char* h1,
                          const char* h2) {
    return ZeroBubbleSetting{model, p, m, v, cost, transfer, plain, loop, h1, h2};
  };
  // clang-format off
  return {
      setting("1.5b", 8, 24, 3, costs(18.522, 18.086, 9.337), 0.601, "0.2431", "0.1055", "0.1585", "0.1083"),
      setting("1.5b", 8, 32, 3, costs(18.513, 18.086, 9.331), 0.626, "0.1985", "0.0818", "0.1242", "0.0837"),
      setting("1.5b", 8, 64, 3, costs(18.546, 18.097, 9.321), 0.762, "0.1240", "0.0443", "0.0674", "0.0444"),
      setting("6.2b", 8, 24, 4, costs(29.718, 29.444, 19.927), 0.527, "0.2347", "0.0808", "0.1323", "0.0698"),
      setting("6.2b", 8, 32, 4, costs(29.802, 29.428, 19.530), 0.577, "0.1898", "0.0628", "0.1045", "0.0559"),
      setting("6.2b", 8, 64, 4, costs(29.935, 29.621, 19.388), 0.535, "0.1091", "0.0320", "0.0554", "0.0294"),
      setting("14.6b", 16, 48, 3, costs(11.347, 11.248, 8.132), 0.377, "0.2552", "0.1104", "0.1397", "0.0672"),
      setting("14.6b", 16, 64, 3, costs(11.307, 11.254, 8.101), 0.379, "0.2082", "0.0852", "0.1088", "0.0516"),
      setting("14.6b", 16, 128, 3, costs(11.325, 11.308, 8.109), 0.378, "0.1251", "0.0445", "0.0576", "0.0266"),
      setting("28.3b", 32, 96, 2, costs(10.419, 10.207, 7.715), 0.408, "0.2646", "0.1493", "0.1421", "0.0641"),
      setting("28.3b", 32, 128, 2, costs(10.408, 10.204, 7.703), 0.408, "0.2168", "0.1164", "0.1106", "0.0490"),
      setting("28.3b", 32, 256, 2, costs(10.402, 10.248, 7.698), 0.460, "0.1352", "0.0624", "0.0594", "0.0257"),
  };
  // clang-format on
}

double zero_bubble_rate(const ZeroBubbleSetting& setting, const std::string& schedule) {
  const int64_t p = setting.workers;
  const int64_t m = setting.micro_batches;
  const auto rate = [&](const Schedule& made) {
    double longest = 0.0;  // the paper's cost: from a worker's first action to its last
    const Simulation simulation = run(made, setting.cost, setting.transfer);
    for (const std::vector<TimedAction>& actions : simulation.workers) {
      longest = std::max(longest, actions.back().end - actions.front().start);
    }
    const double work = static_cast<double>(m) * (setting.cost.forward + setting.cost.backward);
    return (longest - work) / longest;
  };
  if (schedule == "1f1b") return rate(Schedule::one_f_one_b(p, m));
  if (schedule == "interleaved") return rate(interleaved(p, setting.interleaved_stages, m));
  if (schedule == "zb-h1") return rate(zb_h1(p, m));
  // This is the handcrafted ZB-H2. Its order is the one for equal costs, whatever the costs are.
  if (schedule == "zb-h2") return rate(zb_h2(p, m));
  throw std::invalid_argument("the paper's table has no schedule " + schedule);
}

std::vector<Claim> claims() {
  std::vector<Claim> claims;
  add_interleaving(claims);
  add_zero_bubble_formulas(claims);
  add_zero_bubble_table(claims);
  add_dualpipe(claims);
  add_ranking(claims);
  return claims;
}

}  // namespace gpipe::experiments
