// The header that users include; the code is in gpipe/schedule/search/join.h.
#ifndef GPIPE_SCHEDULE_JOIN_H_
#define GPIPE_SCHEDULE_JOIN_H_

#include "gpipe/schedule/search/join.h"  // IWYU pragma: export

#endif  // GPIPE_SCHEDULE_JOIN_H_
