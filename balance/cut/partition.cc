#include "balance/cut/partition.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "balance/cut/cuts.h"
#include "balance/cut/grid.h"
#include "balance/cut/pieces.h"
#include "text/counted.h"
#include "text/digits.h"

namespace gpipe::balance {
namespace {

using text::counted;

using internal::CutProblem;
using internal::Grid;

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

[[noreturn]] void fail(const std::string& what) {
  throw std::invalid_argument("partition: " + what);
}

std::string text(double value) { return text::exact(value); }
std::string text(int64_t value) { return std::to_string(value); }

std::string item(const char* name, size_t index) {
  return std::string(name) + "[" + std::to_string(index) + "]";
}

void check_count(int64_t layers, int64_t partitions) {
  if (partitions < 1) fail("partitions must be at least 1, got " + text(partitions));
  if (layers < partitions) {
    fail("each partition needs a layer, got " + counted(layers, "layer") + " for " +
         counted(partitions, "partition") + "; ask for fewer partitions");
  }
}

template <typename T>
void check_length(const char* name, const std::vector<T>& values, int64_t expected,
                  const std::string& why) {
  if (static_cast<int64_t>(values.size()) == expected) return;
  fail(std::string(name) + " has " + counted(static_cast<int64_t>(values.size()), "value") +
       ", expected " + text(expected) + ", " + why);
}

void check_costs(const char* name, const std::vector<double>& costs) {
  for (size_t i = 0; i < costs.size(); ++i) {
    if (std::isfinite(costs[i]) && costs[i] >= 0) continue;
    fail(item(name, i) + " is " + text(costs[i]) + ", expected a finite number of at least 0");
  }
}

void check_slowness(const std::vector<double>& slowness) {
  for (size_t j = 0; j < slowness.size(); ++j) {
    if (std::isfinite(slowness[j]) && slowness[j] > 0) continue;
    fail(item("slowness", j) + " is " + text(slowness[j]) + ", expected a finite number above 0");
  }
}

void check_sizes(const std::vector<int64_t>& sizes, const std::vector<int64_t>& limits) {
  int64_t sum = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0) fail(item("sizes", i) + " is " + text(sizes[i]) + ", expected at least 0");
    if (sizes[i] > kNoLimit - sum) fail("sizes sum to 2^63 or more; give them in a larger unit");
    sum += sizes[i];
  }
  for (size_t j = 0; j < limits.size(); ++j) {
    if (limits[j] >= 0) continue;
    fail(item("size_limits", j) + " is " + text(limits[j]) + ", expected at least 0");
  }
}

void check(const std::vector<double>& costs, int64_t partitions, const PartitionOptions& options) {
  const auto layers = static_cast<int64_t>(costs.size());
  check_count(layers, partitions);
  check_costs("costs", costs);
  if (!options.slowness.empty()) {
    check_length("slowness", options.slowness, partitions, "one for each partition");
    check_slowness(options.slowness);
  }
  if (!options.sizes.empty() || !options.size_limits.empty()) {
    check_length("sizes", options.sizes, layers, "one for each layer");
    check_length("size_limits", options.size_limits, partitions, "one for each partition");
    check_sizes(options.sizes, options.size_limits);
  }
  const std::string wrong = wrong_ranges(layers, options.keep_together);
  if (!wrong.empty()) fail(wrong);
  for (const auto& [name, list] : {std::pair{"send_costs", &options.send_costs},
                                   std::pair{"receive_costs", &options.receive_costs}}) {
    if (list->empty()) continue;
    check_length(name, *list, layers - 1, "one for each pair of neighboring layers");
    check_costs(name, *list);
  }
}

// Returns the sum of all values before each place.
std::vector<int64_t> sums(const std::vector<int64_t>& places, const std::vector<int64_t>& values) {
  std::vector<int64_t> result;
  result.reserve(places.size());
  int64_t sum = 0;
  int64_t next = 0;
  for (int64_t place : places) {
    while (next < place) sum += values[static_cast<size_t>(next++)];
    result.push_back(sum);
  }
  return result;
}

std::vector<int64_t> units(const Grid& grid, const std::vector<double>& values) {
  std::vector<int64_t> result;
  result.reserve(values.size());
  for (double value : values) result.push_back(grid.units(value));
  return result;
}

// Returns the cost of a cut at each place, 0 at both ends. `values` may be empty.
std::vector<int64_t> cut_costs(const std::vector<int64_t>& places,
                               const std::vector<int64_t>& values) {
  std::vector<int64_t> result(places.size());
  for (size_t k = 1; !values.empty() && k + 1 < places.size(); ++k) {
    result[k] = values[static_cast<size_t>(places[k]) - 1];
  }
  return result;
}

CutProblem make_problem(const std::vector<double>& costs, int64_t partitions,
                        const PartitionOptions& options) {
  const auto blocks = static_cast<size_t>(partitions);
  CutProblem problem;
  problem.layers =
      Pieces(static_cast<int64_t>(costs.size()), options.keep_together, "partition: ").places();

  std::vector<double> all = costs;
  for (const auto* list : {&options.send_costs, &options.receive_costs}) {
    all.insert(all.end(), list->begin(), list->end());
  }
  const Grid grid(all);
  problem.cost = sums(problem.layers, units(grid, costs));
  const bool has_transfers = !options.send_costs.empty() || !options.receive_costs.empty();
  if (has_transfers) {
    problem.send = cut_costs(problem.layers, units(grid, options.send_costs));
    problem.receive = cut_costs(problem.layers, units(grid, options.receive_costs));
  }

  problem.slowness.assign(blocks, 1);
  if (!options.slowness.empty()) {
    double largest = *std::max_element(options.slowness.begin(), options.slowness.end());
    // Transfers take their time at slowness 1. Without transfers only ratios matter.
    if (has_transfers) largest = std::max(largest, 1.0);
    const Grid slowness({largest});
    for (size_t j = 0; j < blocks; ++j) {
      problem.slowness[j] = std::max<int64_t>(slowness.units(options.slowness[j]), 1);
    }
    if (has_transfers) problem.transfer_slowness = slowness.units(1.0);
  }

  problem.size = sums(problem.layers,
                      options.sizes.empty() ? std::vector<int64_t>(costs.size()) : options.sizes);
  problem.size_limit = options.sizes.empty() ? std::vector<int64_t>(blocks) : options.size_limits;
  return problem;
}

std::string layers_text(int64_t first, int64_t past) {
  if (past - first == 1) return "layer " + text(first) + " alone needs ";
  return "layers " + text(first) + " to " + text(past - 1) + ", which must stay together, need ";
}

// Throws with the plainest reason why no cut keeps the size limits.
[[noreturn]] void fail_for_size(const CutProblem& problem) {
  std::string why;
  size_t largest = 0;
  const auto piece = [&](size_t k) { return problem.size[k + 1] - problem.size[k]; };
  for (size_t k = 0; k + 1 < problem.size.size(); ++k) {
    if (piece(k) > piece(largest)) largest = k;
  }
  const int64_t largest_limit =
      *std::max_element(problem.size_limit.begin(), problem.size_limit.end());
  int64_t room = 0;
  for (int64_t limit : problem.size_limit) room = limit > kNoLimit - room ? kNoLimit : room + limit;
  if (piece(largest) > largest_limit) {
    why = layers_text(problem.layers[largest], problem.layers[largest + 1]) + text(piece(largest)) +
          ", the largest limit is " + text(largest_limit);
  } else if (problem.size.back() > room) {
    why = "all layers need " + text(problem.size.back()) + ", the limits allow " + text(room) +
          " in all";
  } else {
    why = "wherever the cuts are, a partition is too large";
  }
  fail("no cut keeps size_limits: " + why + "; it would take " +
       text(internal::missing_size(problem)) +
       " more for each partition. Give larger limits or more partitions");
}

}  // namespace

std::vector<int64_t> partition(const std::vector<double>& costs, int64_t partitions,
                               const PartitionOptions& options) {
  check(costs, partitions, options);
  const CutProblem problem = make_problem(costs, partitions, options);
  const auto pieces = static_cast<int64_t>(problem.layers.size()) - 1;
  if (pieces < partitions) {
    fail("keep_together leaves " + counted(pieces, "piece") + " of " +
         counted(static_cast<int64_t>(costs.size()), "layer") + " for " +
         counted(partitions, "partition") + "; ask for fewer partitions or join fewer layers");
  }
  const std::optional<std::vector<int64_t>> cuts = internal::best_cuts(problem);
  if (!cuts) fail_for_size(problem);
  std::vector<int64_t> result;
  int64_t before = 0;
  for (int64_t cut : *cuts) {
    const int64_t layers = problem.layers[static_cast<size_t>(cut)];
    result.push_back(layers - before);
    before = layers;
  }
  return result;
}

}  // namespace gpipe::balance
