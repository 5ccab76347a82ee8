#include "diagnose/breakdown.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "gpipe/chunk_sizes.h"

namespace gpipe::diagnosis {
namespace {

constexpr double kGrid = 0x1p-40;  // about a picosecond

}  // namespace

double on_grid(double seconds) { return std::round(seconds / kGrid) * kGrid; }

std::vector<Part> break_down(const Costs& costs, int64_t rows, const PipelineSetup& setup,
                             const Machine& machine, double ideal, double step) {
  const auto with = [&](bool recompute, bool transfers, bool shared) {
    return model_step(costs, rows, setup, machine, {recompute, transfers, shared});
  };
  const ModeledStep bare = with(false, false, false);
  const int64_t micro_batches = chunk_sizes(rows, setup.chunks).micro_batches;
  const auto workers = static_cast<double>(setup.schedule_for(micro_batches).workers());
  const double reached[] = {bare.work / workers,
                            bare.busiest,
                            bare.step,
                            with(true, false, false).step,
                            with(true, true, false).step,
                            with(true, true, true).step,
                            step};
  constexpr Cause kCauses[] = {Cause::kSmallMicroBatches, Cause::kImbalance, Cause::kFillAndDrain,
                               Cause::kRecompute,         Cause::kTransfers, Cause::kSharedCores,
                               Cause::kOverhead};
  std::vector<Part> parts;
  double before = on_grid(ideal);
  for (size_t k = 0; k < std::size(kCauses); ++k) {
    const double now = on_grid(reached[k]);
    parts.push_back({kCauses[k], now - before});
    before = now;
  }
  return parts;
}

double fit_contention(const Costs& costs, int64_t rows, const PipelineSetup& setup, Machine machine,
                      double busy) {
  machine.contention = 1;
  const double once = model_step(costs, rows, setup, machine).busy;
  machine.contention = 2;
  // Two simulations are enough, because the time grows linearly with the contention.
  const double more = model_step(costs, rows, setup, machine).busy - once;
  return more > 0 ? std::max(1.0, 1 + (busy - once) / more) : 1.0;
}

}  // namespace gpipe::diagnosis
