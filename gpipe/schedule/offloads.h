// with_offloads: a schedule with offloads and reloads that keep its memory low and cost no time.
#ifndef GPIPE_SCHEDULE_OFFLOADS_H_
#define GPIPE_SCHEDULE_OFFLOADS_H_

#include <cstdint>
#include <vector>

#include "gpipe/schedule/routes.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/simulate.h"

namespace gpipe {

// The schedule without the offloads that it has, if any.
Schedule without_offloads(const Schedule& schedule);

// The same schedule, whose own offloads are left out, with offloads and reloads. Of those that are
// found, the highest of the workers' peaks (Simulation::peak) is the lowest, then the makespan the
// shortest, and then the other peaks the lowest. Which cells go is chosen at the peak, those first
// whose next part is the farthest away. No cell goes in vain: were any one to stay, its worker's
// peak would be higher. Where nothing is gained, the result has no offloads.
//
// With `more_time` 0 no action waits for a copy: the result is simulated, and no action that
// computes ends later than without offloads. Otherwise the makespan becomes at most
// 1 + more_time times as long: what is found for faster links is tried, up to one without a limit.
// With more of it the highest peak is never higher, and where it is the same, the makespan is not
// longer.
//
// `most`: [stage] how many cells may be between their offload and their reload at once; less than
// 1: none. Empty: any number.
//
// Takes the time of about n^2 tables for n cells of a worker at worst. Throws std::invalid_argument
// as simulate() does, if OffloadCosts::bytes is empty, for a `more_time` that is negative or not
// finite, and for a `most` that has not one number for each stage.
//
// Example:
//   SimulateOptions costs;
//   costs.offload.bytes = [](const Action&) { return 1e9; };
//   costs.offload.to_host = costs.offload.to_device = 20e9;
//   Schedule low = with_offloads(Schedule::gpipe(2, 8), Routes::create(2), costs);
//   simulate(low, costs).peak;
Schedule with_offloads(const Schedule& schedule, const Routes& routes, const SimulateOptions& costs,
                       double more_time = 0.0, const std::vector<int64_t>& most = {});

namespace internal {

// Internal: what with_offloads() finds. The schedule with the lowest peak comes first, then faster
// ones, each with the lowest peak of those that are as fast. Empty: nothing is gained. `beside`:
// [worker] what it holds beside its cells, which counts in its peak; empty: nothing. With more time
// there are more schedules to choose from, and all that there were with less.
std::vector<Schedule> offload_choices(const Schedule& schedule, const Routes& routes,
                                      const SimulateOptions& costs, double more_time,
                                      const std::vector<int64_t>& most,
                                      std::vector<double> beside = {});

}  // namespace internal
}  // namespace gpipe

#endif  // GPIPE_SCHEDULE_OFFLOADS_H_
