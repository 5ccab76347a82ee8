// Measures how long search() takes with its default budget on one core, with and without a limit of
// memory. All layers of a worker together cost F 1, B 1.8, I 1.1, W 0.7; a transfer costs 0.1.
//
//   tools/bazel run //gpipe/schedule/search:search_benchmark
//
// `actions` are the simulated actions, as the budget counts them. `gap` says how much longer, in
// percent, the found makespan is than the lower bound.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>

#include "gpipe/placement.h"
#include "gpipe/schedule/search/search.h"

namespace gpipe {
namespace {

void search_for(benchmark::State& state, const Placement& placement, int64_t micro_batches,
                double limit) {
  const auto v = static_cast<double>(placement.stages() / placement.workers());
  SearchOptions options;
  options.placement = placement;
  options.micro_batches = micro_batches;
  options.costs = {{1.0 / v, 1.8 / v, 1.1 / v, 0.7 / v}};
  options.activation_transfer = {0.1};
  options.gradient_transfer = {0.1};
  if (limit > 0.0) options.memory_limit = {limit};
  int64_t actions = 0;
  double gap = 0.0;
  for (auto _ : state) {
    const SearchResult result = search(options);
    actions += result.actions;
    gap = result.gap();
  }
  state.counters["actions"] =
      benchmark::Counter(static_cast<double>(actions), benchmark::Counter::kAvgIterations);
  state.counters["gap"] = 100.0 * std::max(gap, 0.0);  // rounding may make it negative
}

void BM_SearchOneEach(benchmark::State& state) {
  search_for(state, Placement::one_each(state.range(0)), state.range(1), 0.0);
}
void BM_SearchLoop(benchmark::State& state) {
  search_for(state, Placement::loop(state.range(0), 2), state.range(1), 0.0);
}
void BM_SearchV(benchmark::State& state) {
  search_for(state, Placement::v_shape(state.range(0)), state.range(1), 0.0);
}
// The limit is as much as the first worker of 1F1B holds: as many micro-batches as there are
// workers, in each of a worker's two stages.
void BM_SearchVLimited(benchmark::State& state) {
  search_for(state, Placement::v_shape(state.range(0)), state.range(1),
             2.0 * static_cast<double>(state.range(0)));
}

void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"workers", "micro_batches"})->Unit(benchmark::kMillisecond)->Iterations(1);
  benchmark->Args({16, 64})->Args({64, 512});
}
BENCHMARK(BM_SearchOneEach)->Apply(sizes);
BENCHMARK(BM_SearchLoop)->Apply(sizes);
BENCHMARK(BM_SearchV)->Apply(sizes);
BENCHMARK(BM_SearchVLimited)->Apply(sizes);

}  // namespace
}  // namespace gpipe
