#include "experiments/common/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace gpipe::experiments {
namespace {

void check_not_empty(const std::vector<double>& values, const char* what) {
  if (values.empty()) {
    throw std::invalid_argument(std::string(what) + " of no values: nothing was measured");
  }
}

}  // namespace

double mean(const std::vector<double>& values) {
  check_not_empty(values, "mean");
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double median(std::vector<double> values) {
  check_not_empty(values, "median");
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  if (values.size() % 2 == 1) return values[middle];
  return (values[middle - 1] + values[middle]) / 2;
}

double median_absolute_deviation(const std::vector<double>& values) {
  const double center = median(values);
  std::vector<double> deviations;
  deviations.reserve(values.size());
  for (double value : values) deviations.push_back(std::abs(value - center));
  return median(std::move(deviations));
}

double mean_after(const std::vector<double>& values, std::size_t skip) {
  if (skip >= values.size()) return mean(values);
  return mean(
      std::vector<double>(values.begin() + static_cast<std::ptrdiff_t>(skip), values.end()));
}

}  // namespace gpipe::experiments
