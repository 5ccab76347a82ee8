// Measures the time of an exact partition.
//
//   tools/bazel run //balance/cut:partition_benchmark
//
// BM_Partition cuts a thousand layers into 64 partitions, for several kinds of lists and options.
// BM_Textbook alternates partition() and a textbook dynamic program, so that a busy machine slows
// both. The textbook program finds the smallest heaviest block in double, without ties or options.
// `speedup` is the median of the ratios textbook / partition(). BM_Size shows how the time grows.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "balance/cut/partition.h"
#include "gpipe/timing.h"

namespace gpipe::balance {
namespace {

using Costs = std::vector<double>;

struct Kind {
  std::string name;
  std::function<Costs(size_t layers)> make;
};

Costs random_costs(size_t layers) {
  std::mt19937_64 random(1);
  Costs costs(layers);
  for (double& cost : costs) cost = std::uniform_real_distribution<>(0.0, 1.0)(random);
  return costs;
}

std::vector<Kind> kinds() {
  return {
      {"random", random_costs},
      {"equal", [](size_t layers) { return Costs(layers, 1.0); }},
      {"zeros", [](size_t layers) { return Costs(layers, 0.0); }},
      {"increasing",
       [](size_t layers) {
         Costs costs(layers);
         std::iota(costs.begin(), costs.end(), 1.0);
         return costs;
       }},
      // The heaviest block is this layer in every cut, so it decides nothing about the others.
      {"one_heavy",
       [](size_t layers) {
         Costs costs = random_costs(layers);
         costs[layers / 2] = 1e6;
         return costs;
       }},
      // There is one heavy layer more than partitions, so every probe has room to spare.
      {"heavy_and_zeros",
       [](size_t layers) {
         Costs costs(layers, 0.0);
         for (size_t i = 0; i < 65; ++i) costs[i * layers / 65] = 1.0;
         return costs;
       }},
      {"few_nonzero",
       [](size_t layers) {
         Costs costs(layers, 0.0);
         for (size_t i = 0; i < layers; i += 50) costs[i] = 1.0 + static_cast<double>(i);
         return costs;
       }},
  };
}

struct NamedOptions {
  std::string name;
  std::function<PartitionOptions(const Costs& costs, int64_t partitions)> make;
};

PartitionOptions with_slowness(int64_t partitions) {
  PartitionOptions options;
  for (int64_t j = 0; j < partitions; ++j) {
    options.slowness.push_back(1.0 + 0.1 * static_cast<double>(j % 7));
  }
  return options;
}

void add_sizes(size_t layers, int64_t partitions, PartitionOptions* options) {
  options->sizes.assign(layers, 1);
  options->size_limits.assign(partitions, 2 * static_cast<int64_t>(layers) / partitions + 1);
}

void add_cut_costs(size_t layers, PartitionOptions* options) {
  options->send_costs = random_costs(layers - 1);
  options->receive_costs = options->send_costs;
}

std::vector<NamedOptions> option_sets() {
  return {
      {"no_options", [](const Costs&, int64_t) { return PartitionOptions(); }},
      {"slowness", [](const Costs&, int64_t partitions) { return with_slowness(partitions); }},
      {"sizes",
       [](const Costs& costs, int64_t partitions) {
         PartitionOptions options;
         add_sizes(costs.size(), partitions, &options);
         return options;
       }},
      {"cut_costs",
       [](const Costs& costs, int64_t) {
         PartitionOptions options;
         add_cut_costs(costs.size(), &options);
         return options;
       }},
      {"all",
       [](const Costs& costs, int64_t partitions) {
         PartitionOptions options = with_slowness(partitions);
         add_sizes(costs.size(), partitions, &options);
         add_cut_costs(costs.size(), &options);
         options.keep_together = {{10, 20}};
         return options;
       }},
  };
}

void BM_Partition(benchmark::State& state, const Kind& kind, const NamedOptions& options) {
  constexpr int64_t kPartitions = 64;
  const Costs costs = kind.make(1000);
  const PartitionOptions partition_options = options.make(costs, kPartitions);
  for (auto _ : state) benchmark::DoNotOptimize(partition(costs, kPartitions, partition_options));
}

void BM_Size(benchmark::State& state) {
  const Costs costs = random_costs(static_cast<size_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(partition(costs, state.range(1)));
}
BENCHMARK(BM_Size)
    ->ArgNames({"layers", "partitions"})
    ->Args({100, 8})
    ->Args({1000, 8})
    ->Args({1000, 500})
    ->Args({10000, 8})
    ->Args({10000, 64})
    ->Unit(benchmark::kMillisecond);

double textbook(const Costs& costs, int64_t partitions) {
  const size_t layers = costs.size();
  Costs before(layers + 1, 0.0);
  std::partial_sum(costs.begin(), costs.end(), before.begin() + 1);
  Costs best = before;
  for (int64_t j = 1; j < partitions; ++j) {
    for (size_t end = layers; end > 0; --end) {
      double least = std::numeric_limits<double>::infinity();
      for (size_t begin = 0; begin < end; ++begin) {
        least = std::min(least, std::max(best[begin], before[end] - before[begin]));
      }
      best[end] = least;
    }
  }
  return best[layers];
}

void BM_Textbook(benchmark::State& state, const Kind& kind) {
  const Costs costs = kind.make(1000);
  Costs ratios;
  for (auto _ : state) {
    const double theirs = seconds_of([&] { benchmark::DoNotOptimize(textbook(costs, 64)); });
    const double ours = seconds_of([&] { benchmark::DoNotOptimize(partition(costs, 64)); });
    state.SetIterationTime(theirs);
    ratios.push_back(theirs / ours);
  }
  state.counters["speedup"] = median(ratios);
}

const bool registered = [] {
  for (const Kind& kind : kinds()) {
    for (const NamedOptions& options : option_sets()) {
      benchmark::RegisterBenchmark(
          ("BM_Partition/" + kind.name + "/" + options.name).c_str(),
          [=](benchmark::State& state) { BM_Partition(state, kind, options); })
          ->Unit(benchmark::kMillisecond);
    }
  }
  for (const Kind& kind : kinds()) {
    benchmark::RegisterBenchmark(("BM_Textbook/" + kind.name).c_str(),
                                 [=](benchmark::State& state) { BM_Textbook(state, kind); })
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  }
  return true;
}();

}  // namespace
}  // namespace gpipe::balance
