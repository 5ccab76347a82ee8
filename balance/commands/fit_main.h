// fit_main: balance/commands/balance_main.h has it.
#ifndef BALANCE_COMMANDS_FIT_MAIN_H_
#define BALANCE_COMMANDS_FIT_MAIN_H_

#include "balance/commands/balance_main.h"

#endif  // BALANCE_COMMANDS_FIT_MAIN_H_
