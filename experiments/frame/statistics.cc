#include "experiments/frame/statistics.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

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

double range_after(const std::vector<double>& values, std::size_t skip) {
  check_not_empty(values, "range");
  const std::size_t first = skip < values.size() ? skip : 0;
  const auto [least, most] =
      std::minmax_element(values.begin() + static_cast<std::ptrdiff_t>(first), values.end());
  return *most / *least;
}

double mean_after(const std::vector<double>& values, std::size_t skip) {
  if (skip >= values.size()) return mean(values);
  return mean(
      std::vector<double>(values.begin() + static_cast<std::ptrdiff_t>(skip), values.end()));
}

}  // namespace gpipe::experiments
