// searched_order: the generators that search, with the work and the end that a caller gives.
//
// Internal to gpipe/schedule. A generator of its own has all of searched_work(); a search begins
// with what these find, and counts that against its own budget.
#ifndef GPIPE_SCHEDULE_SEARCH_SEARCHED_H_
#define GPIPE_SCHEDULE_SEARCH_SEARCHED_H_

#include <cstdint>
#include <functional>

#include "gpipe/schedule/search/generators.h"
#include "gpipe/schedule/search/optimize.h"
#include "gpipe/schedule/search/workload.h"

namespace gpipe::internal {

enum class Searched : uint8_t { kZbH2, kZbV, kVHalf, kVMin, kDualPipeV };

// The most simulated actions that the generator takes; 0 where it follows rules.
int64_t searched_work(Searched which, int64_t workers, int64_t micro_batches);

// What the generator of this name makes, with at most `budget` of them.
Optimized searched_order(Searched which, int64_t workers, int64_t micro_batches,
                         const GeneratorCosts& costs, int64_t budget,
                         const std::function<bool()>& stop = {});

}  // namespace gpipe::internal

#endif  // GPIPE_SCHEDULE_SEARCH_SEARCHED_H_
