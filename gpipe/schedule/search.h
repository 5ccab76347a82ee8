// The header that users include; the code is in gpipe/schedule/search/search.h.
#ifndef GPIPE_SCHEDULE_SEARCH_H_
#define GPIPE_SCHEDULE_SEARCH_H_

#include "gpipe/schedule/search/search.h"  // IWYU pragma: export

#endif  // GPIPE_SCHEDULE_SEARCH_H_
