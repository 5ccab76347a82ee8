// The header for users; the code is in balance/memory/memory_plan.h.
#ifndef GPIPE_BALANCE_MEMORY_PLAN_H_
#define GPIPE_BALANCE_MEMORY_PLAN_H_

#include "balance/memory/memory_plan.h"  // IWYU pragma: export

#endif  // GPIPE_BALANCE_MEMORY_PLAN_H_
