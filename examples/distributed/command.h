// run_command: the frame of a command over processes, from its flags to its exit code.
#ifndef DISTRIBUTED_COMMAND_H_
#define DISTRIBUTED_COMMAND_H_

#include <functional>
#include <string>

#include "gpipe/world.h"

namespace distributed {

// The same as gpipe::command::run_command (command/run.h), but for each of the processes that a
// launcher has started, or one alone. `read` makes settings of the flags; `prepare` finds out,
// together with the other processes, what must be done, and returns the work.
//
// A std::invalid_argument or c10::ValueError from either means wrong usage: all processes end with
// exit code 2, also those that have found nothing wrong, and only rank 0 says why. If not all
// processes have found it, rank 0 says which ones have.
//
// So a process connects to the others before it ends because of its flags. If it cannot connect, it
// reports the mistake itself.
int run_command(int argc, const char* const* argv, const std::string& usage,
                const std::function<void()>& read,
                const std::function<std::function<int()>(const gpipe::World& processes)>& prepare);

}  // namespace distributed

#endif  // DISTRIBUTED_COMMAND_H_
