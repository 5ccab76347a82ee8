// The header that users include; the code is in gpipe/schedule/search/searched.h.
#ifndef GPIPE_SCHEDULE_SEARCHED_H_
#define GPIPE_SCHEDULE_SEARCHED_H_

#include "gpipe/schedule/search/searched.h"  // IWYU pragma: export

#endif  // GPIPE_SCHEDULE_SEARCHED_H_
