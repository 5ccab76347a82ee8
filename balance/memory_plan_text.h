// The header for users; the code is in balance/memory/memory_plan_text.h.
#ifndef GPIPE_BALANCE_MEMORY_PLAN_TEXT_H_
#define GPIPE_BALANCE_MEMORY_PLAN_TEXT_H_

#include "balance/memory/memory_plan_text.h"  // IWYU pragma: export

#endif  // GPIPE_BALANCE_MEMORY_PLAN_TEXT_H_
