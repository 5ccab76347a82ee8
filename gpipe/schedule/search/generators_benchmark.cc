// Measures how far the generators that search are behind search() with the same costs and
// placement, and with as much memory as a worker of the generator's table holds at most.
//
//   tools/bazel run //gpipe/schedule/search:generators_benchmark
//
// For each number of workers p, the cases are mini-batches of 1, p, 2p - 1, 2p and 3p
// micro-batches, with equal costs, with the costs of chapter 20, and with three sets of costs that
// are drawn. `max` and `median` say how much longer, in percent, the generator's makespan is. The
// label names the case of the maximum. A generator that may join backwards is compared with a
// search that may, too.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gpipe/placement.h"
#include "gpipe/schedule/search/generators.h"
#include "gpipe/schedule/search/search.h"
#include "gpipe/schedule/simulate.h"

namespace gpipe {
namespace {

using Make = Schedule (*)(int64_t workers, int64_t micro_batches, const GeneratorCosts& costs);

std::vector<GeneratorCosts> costs_of_grid() {
  std::vector<GeneratorCosts> all = {{{1.0, 2.0, 1.0, 1.0}, 0.0}, {{1.0, 1.8, 1.1, 0.7}, 0.1}};
  std::mt19937 random(1);
  const auto draw = [&](double least, double most) {
    return least + (most - least) * static_cast<double>(random()) / 4294967296.0;
  };
  for (int k = 0; k < 3; ++k) {
    const double input = draw(0.5, 2.0);
    const double weight = draw(0.3, 1.7);
    const double transfer = draw(0.0, 0.4);
    const double whole = std::max({input, weight, draw(0.6, 1.0) * (input + weight)});
    all.push_back({{1.0, whole, input, weight}, transfer});
  }
  return all;
}

// How much longer the generator's makespan is than that of the search, as a share of the latter.
double behind(const Schedule& schedule, const Placement& placement, GeneratorCosts costs,
              bool joins) {
  if (!joins) costs.stage.backward = costs.stage.input_gradient + costs.stage.weight_gradient;
  const ScheduleFacts facts = schedule.verify(Sends::kBuffered);
  SearchOptions options;
  options.placement = placement;
  options.micro_batches = schedule.micro_batches();
  options.costs = {costs.stage};
  options.activation_transfer = options.gradient_transfer = {costs.transfer};
  options.memory_limit = {static_cast<double>(
      *std::max_element(facts.worker_peak_live.begin(), facts.worker_peak_live.end()))};
  return simulate(schedule, simulate_options(options)).makespan / search(options).makespan - 1.0;
}

void grid(benchmark::State& state, Make make, bool v_shape, bool joins) {
  const int64_t p = state.range(0);
  const Placement placement = v_shape ? Placement::v_shape(p) : Placement::one_each(p);
  std::vector<double> all;
  for (auto _ : state) {
    for (const int64_t m : std::set<int64_t>{1, p, 2 * p - 1, 2 * p, 3 * p}) {
      const std::vector<GeneratorCosts> each = costs_of_grid();
      for (size_t k = 0; k < each.size(); ++k) {
        all.push_back(100.0 * behind(make(p, m, each[k]), placement, each[k], joins));
        if (all.back() < *std::max_element(all.begin(), all.end())) continue;
        state.SetLabel(std::to_string(m) + " micro-batches, costs " + std::to_string(k));
      }
    }
  }
  std::sort(all.begin(), all.end());
  state.counters["max"] = all.back();
  state.counters["median"] = all[all.size() / 2];
}

void workers(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("workers")->DenseRange(2, 6)->Unit(benchmark::kSecond)->Iterations(1);
}
BENCHMARK_CAPTURE(grid, zb_h2, &zb_h2, false, false)->Apply(workers);
BENCHMARK_CAPTURE(grid, zb_v, &zb_v, true, false)->Apply(workers);
BENCHMARK_CAPTURE(grid, v_half, &v_half, true, false)->Apply(workers);
BENCHMARK_CAPTURE(grid, v_min, &v_min, true, false)->Apply(workers);
BENCHMARK_CAPTURE(grid, dualpipe_v, &dualpipe_v, true, true)->Apply(workers);

}  // namespace
}  // namespace gpipe
