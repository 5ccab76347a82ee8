// The header that users include; the code is in gpipe/schedule/search/generators.h.
#ifndef GPIPE_SCHEDULE_GENERATORS_H_
#define GPIPE_SCHEDULE_GENERATORS_H_

#include "gpipe/schedule/search/generators.h"  // IWYU pragma: export

#endif  // GPIPE_SCHEDULE_GENERATORS_H_
