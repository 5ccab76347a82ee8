// zoo_main: the planning commands for the networks of the zoo.
#ifndef BALANCE_COMMANDS_ZOO_MAIN_H_
#define BALANCE_COMMANDS_ZOO_MAIN_H_

#include <string>

namespace gpipe::balance {

// Runs the command of that name, as run_planning() does.
int zoo_main(int argc, const char* const* argv, const std::string& name = "");

}  // namespace gpipe::balance

#endif  // BALANCE_COMMANDS_ZOO_MAIN_H_
