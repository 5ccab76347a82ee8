// The header for users; the code is in balance/choose/plan_options.h.
#ifndef GPIPE_BALANCE_PLAN_OPTIONS_H_
#define GPIPE_BALANCE_PLAN_OPTIONS_H_

#include "balance/choose/plan_options.h"  // IWYU pragma: export

#endif  // GPIPE_BALANCE_PLAN_OPTIONS_H_
