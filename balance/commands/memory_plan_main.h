// memory_plan_main: balance/commands/balance_main.h has it.
#ifndef BALANCE_COMMANDS_MEMORY_PLAN_MAIN_H_
#define BALANCE_COMMANDS_MEMORY_PLAN_MAIN_H_

#include "balance/commands/balance_main.h"

#endif  // BALANCE_COMMANDS_MEMORY_PLAN_MAIN_H_
