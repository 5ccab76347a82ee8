// The header for users; the code is in balance/costs/profiler.h.
#ifndef GPIPE_BALANCE_PROFILER_H_
#define GPIPE_BALANCE_PROFILER_H_

#include "balance/costs/profiler.h"  // IWYU pragma: export

#endif  // GPIPE_BALANCE_PROFILER_H_
