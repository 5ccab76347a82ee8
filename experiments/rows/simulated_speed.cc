#include "experiments/rows/simulated_speed.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace gpipe::experiments {
namespace {

balance::Explanation explain_step(const SpeedVariant& variant, const EpochSteps& step,
                                  const LayerCosts& costs, const balance::Machine& machine,
                                  const ScheduleGenerator& schedule) {
  const int64_t rows = step.micro_batches.front();
  const balance::Profile profile = costs(rows);
  balance::ExplainOptions options;
  options.chunks = static_cast<int64_t>(step.micro_batches.size());
  if (step.micro_batches.back() != rows) {
    for (const int64_t size : step.micro_batches) {
      options.micro_batch_sizes.push_back(static_cast<double>(size) / static_cast<double>(rows));
    }
  }
  options.checkpoint = step.checkpoint;
  options.schedule = schedule;
  if (variant.balance.empty()) {
    return balance::explain(profile, {static_cast<int64_t>(profile.layers.size())}, options);
  }
  static_cast<balance::Machine&>(options) = machine;
  return balance::explain(profile, variant.balance, options);
}

}  // namespace

SimulatedSpeed simulate_speed(const SpeedVariant& variant, int64_t samples, const LayerCosts& costs,
                              const balance::Machine& machine, const ScheduleGenerator& schedule) {
  SimulatedSpeed speed;
  for (const EpochSteps& step : steps_of_epoch(variant, samples)) {
    speed.steps.push_back(explain_step(variant, step, costs, machine, schedule));
    speed.seconds += static_cast<double>(step.times) * speed.steps.back().step;
  }
  if (!(speed.seconds > 0)) {
    throw std::invalid_argument(
        variant.name +
        ": all times of the profile are 0, so nothing can be simulated; give one with times");
  }
  speed.throughput = static_cast<double>(samples) / speed.seconds;
  return speed;
}

double factor_for(const SpeedVariant& variant, int64_t samples, double throughput,
                  const LayerCosts& costs, const balance::Machine& machine,
                  const ScheduleGenerator& schedule) {
  if (!std::isfinite(throughput) || throughput <= 0) {
    throw std::invalid_argument(variant.name + ": a throughput of " + std::to_string(throughput) +
                                " cannot be reached; give one above 0");
  }
  const double wanted = static_cast<double>(samples) / throughput;
  const auto seconds = [&](double factor) {
    return simulate_speed(variant, samples, scaled(costs, factor), machine, schedule).seconds;
  };
  // Seconds grow with the factor, and nearly in proportion.
  double low = 0;
  double high = wanted / seconds(1);
  const auto fits = [wanted](double time) { return std::abs(time - wanted) <= 1e-9 * wanted; };
  for (int attempt = 0; attempt < 200; ++attempt) {
    const double time = seconds(high);
    if (fits(time)) return high;
    if (time > wanted) break;
    low = high;
    high *= 2;
  }
  for (int attempt = 0; attempt < 200; ++attempt) {
    const double middle = low + (high - low) / 2;
    const double time = seconds(middle);
    if (fits(time)) return middle;
    (time > wanted ? high : low) = middle;
  }
  throw std::invalid_argument(variant.name + ": no speed of the layers gives " +
                              std::to_string(throughput) +
                              " samples per second; transfers and overheads alone take longer");
}

}  // namespace gpipe::experiments
