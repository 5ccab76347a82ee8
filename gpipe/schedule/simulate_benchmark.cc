// Measures simulate() and compile(), for schedules up to the largest size that was asked for.
// The time of simulate() includes making the schedule, checking it and putting times on it; costs
// are uniform, and transfers take time. The time of compile() is that of compiling an existing
// schedule to a Program, with routes between neighbors only.
//
//   tools/bazel run //gpipe/schedule:simulate_benchmark
//
// `items` are actions, two for each cell. `peak_MB` is the most memory that the process has used so
// far.

#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <cstdint>
#include <vector>

#include "gpipe/schedule/program.h"
#include "gpipe/schedule/routes.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/simulate.h"

namespace gpipe {
namespace {

double peak_megabytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;  // ru_maxrss is in KiB
}

void simulate_sizes(benchmark::State& state, Schedule (*generator)(int64_t, int64_t)) {
  SimulateOptions options;
  options.action = uniform_cost({1.0, 2.0});
  options.transfer = [](const Transfer&) { return 0.25; };
  double makespan = 0;
  int64_t actions = 0;
  for (auto _ : state) {
    const Schedule schedule = generator(state.range(0), state.range(1));
    const Simulation run = simulate(schedule, options);
    makespan = run.makespan;
    for (const std::vector<TimedAction>& worker : run.workers) {
      actions += static_cast<int64_t>(worker.size());
    }
    benchmark::DoNotOptimize(run);
  }
  state.SetItemsProcessed(actions);
  state.counters["makespan"] = makespan;
  state.counters["peak_MB"] = peak_megabytes();
}

void BM_SimulateFillDrain(benchmark::State& state) { simulate_sizes(state, Schedule::gpipe); }
void BM_SimulateOneFOneB(benchmark::State& state) { simulate_sizes(state, Schedule::one_f_one_b); }

void compile_sizes(benchmark::State& state, Schedule (*generator)(int64_t, int64_t)) {
  const Schedule schedule = generator(state.range(0), state.range(1));
  const Routes routes = Routes::create(state.range(0));
  for (auto _ : state) {
    const Program program = compile(schedule, routes);
    benchmark::DoNotOptimize(program);
  }
  state.SetItemsProcessed(state.iterations() * 2 * state.range(0) * state.range(1));
  state.counters["peak_MB"] = peak_megabytes();
}

void BM_CompileFillDrain(benchmark::State& state) { compile_sizes(state, Schedule::gpipe); }
void BM_CompileOneFOneB(benchmark::State& state) { compile_sizes(state, Schedule::one_f_one_b); }

void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"stages", "micro_batches"})->Unit(benchmark::kMillisecond);
  benchmark->Args({8, 32})->Args({64, 1024})->Args({1024, 4096});
}
BENCHMARK(BM_SimulateFillDrain)->Apply(sizes);
BENCHMARK(BM_SimulateOneFOneB)->Apply(sizes);
BENCHMARK(BM_CompileFillDrain)->Apply(sizes);
BENCHMARK(BM_CompileOneFOneB)->Apply(sizes);

}  // namespace
}  // namespace gpipe
