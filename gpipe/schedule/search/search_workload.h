// workload_of: the options of a search as the workload that its parts take.
#ifndef GPIPE_SCHEDULE_SEARCH_SEARCH_WORKLOAD_H_
#define GPIPE_SCHEDULE_SEARCH_SEARCH_WORKLOAD_H_

#include "gpipe/schedule/search/search.h"
#include "gpipe/schedule/search/workload.h"

namespace gpipe::internal {

// Throws std::invalid_argument for options that make no sense.
Workload workload_of(const SearchOptions& options);

}  // namespace gpipe::internal

#endif  // GPIPE_SCHEDULE_SEARCH_SEARCH_WORKLOAD_H_
