// The header for users; the code is in balance/choose/plan.h.
#ifndef GPIPE_BALANCE_PLAN_H_
#define GPIPE_BALANCE_PLAN_H_

#include "balance/choose/plan.h"  // IWYU pragma: export

#endif  // GPIPE_BALANCE_PLAN_H_
