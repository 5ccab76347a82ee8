// fit_command: the command //balance:fit, for the models of the zoo or a user's own model
// (fit_main.h).
#ifndef BALANCE_COMMANDS_FIT_COMMAND_H_
#define BALANCE_COMMANDS_FIT_COMMAND_H_

#include "balance/commands/command_model.h"

namespace gpipe::balance {

// Reads the flags, does what they ask for, and returns the exit code. Call it first in main.
int fit_command(int argc, const char* const* argv, const CommandFace& face);

}  // namespace gpipe::balance

#endif  // BALANCE_COMMANDS_FIT_COMMAND_H_
