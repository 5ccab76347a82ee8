// The header for users; the code is in balance/choose/pipeline_plan.h.
#ifndef GPIPE_BALANCE_PIPELINE_PLAN_H_
#define GPIPE_BALANCE_PIPELINE_PLAN_H_

#include "balance/choose/pipeline_plan.h"  // IWYU pragma: export

#endif  // GPIPE_BALANCE_PIPELINE_PLAN_H_
