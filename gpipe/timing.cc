#include "gpipe/timing.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <stdexcept>

namespace gpipe {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double seconds_of(const std::function<void()>& work) {
  const double begin = steady_seconds();
  work();
  return steady_seconds() - begin;
}

double median(std::vector<double> values) {
  if (values.empty()) throw std::invalid_argument("median of no values: nothing was measured");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace gpipe
