// searched_order, check_costs: the generators that search, with a budget and a `stop` that the
// caller gives.
//
// Internal to gpipe/schedule. If a user calls one of these generators, it may use all of
// searched_work(). search() begins with the orders of these generators, and counts their work
// against its own budget.
#ifndef GPIPE_SCHEDULE_SEARCH_SEARCHED_H_
#define GPIPE_SCHEDULE_SEARCH_SEARCHED_H_

#include <cstdint>
#include <functional>

#include "gpipe/schedule/search/generators.h"
#include "gpipe/schedule/search/optimize.h"
#include "gpipe/schedule/search/workload.h"

namespace gpipe::internal {

enum class Searched : uint8_t { kZbH2, kZbV, kVHalf, kVMin, kDualPipeV };

// Throws std::invalid_argument that names the cost if a cost is negative or not finite.
void check_costs(const GeneratorCosts& costs);

// The most simulated actions that the generator takes; 0 if it follows rules for these sizes.
int64_t searched_work(Searched which, int64_t workers, int64_t micro_batches);

// The order that this generator makes, with at most `budget` simulated actions.
Optimized searched_order(Searched which, int64_t workers, int64_t micro_batches,
                         const GeneratorCosts& costs, int64_t budget,
                         const std::function<bool()>& stop = {});

}  // namespace gpipe::internal

#endif  // GPIPE_SCHEDULE_SEARCH_SEARCHED_H_
