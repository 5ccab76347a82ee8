// Measures small operators on a worker with a team of all cores. Another thread has such a team,
// too, and keeps it (released:0) or has released it (released:1).
//   tools/bazel run //gpipe/internal/threads:openmp_team_benchmark
#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <benchmark/benchmark.h>

#include <thread>

#include "gpipe/internal/threads/cpu_threads.h"
#include "gpipe/internal/threads/openmp_team.h"

namespace gpipe::internal {
namespace {

void operators(int count) {
  at::Tensor x = at::ones({64, 1024});
  for (int i = 0; i < count; ++i) benchmark::DoNotOptimize(x = at::relu(x));
}

void BM_OperatorsBesideATeam(benchmark::State& state) {
  const bool release = state.range(0) != 0;
  operators(10);
  if (release) release_openmp_team();
  const int threads = at::get_num_threads();
  std::thread([&] {
    set_threads_of_this_thread(threads);
    operators(1000);
    for (auto _ : state) operators(1000);
  }).join();
  state.SetItemsProcessed(state.iterations() * 1000);
}
BENCHMARK(BM_OperatorsBesideATeam)->Arg(0)->Arg(1)->ArgName("released")->UseRealTime();

// Measures what the release costs its own thread: the end of a team and the start of the next one.
void BM_ReleaseAndNextOperator(benchmark::State& state) {
  for (auto _ : state) {
    release_openmp_team();
    operators(1);
  }
}
BENCHMARK(BM_ReleaseAndNextOperator)->UseRealTime();

}  // namespace
}  // namespace gpipe::internal
