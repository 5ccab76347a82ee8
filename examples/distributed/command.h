// run_command: runs a command over processes, from its flags to its exit code.
#ifndef DISTRIBUTED_COMMAND_H_
#define DISTRIBUTED_COMMAND_H_

#include <functional>
#include <string>

#include "command/flags.h"
#include "gpipe/world.h"

namespace distributed {

// Does what gpipe::command::run_command (command/run.h) does, in each of the processes that a
// launcher has started, or in a single one. `read` makes settings of the flags, or checks those
// that `flags` has set. `prepare` finds out, together with the other processes, what must be done,
// and returns that work.
//
// A std::invalid_argument or c10::ValueError from either means wrong usage. Then all processes end
// with exit code 2, even those that have found nothing wrong, and only rank 0 says why. If not all
// processes have found the mistake, rank 0 says which ones have.
//
// So a process connects to the others before it ends because of its flags. If it cannot connect, it
// reports the mistake itself.
//
// `alone`: if it is given and returns work when the flags are read, that is done instead, and the
// processes are not connected before: the work does that (gpipe::ResilientRun).
int run_command(int argc, const char* const* argv, const std::string& usage,
                const std::function<void()>& read,
                const std::function<std::function<int()>(const gpipe::World& processes)>& prepare,
                const gpipe::command::FlagSet& flags = {},
                const std::function<std::function<int()>()>& alone = nullptr);

}  // namespace distributed

#endif  // DISTRIBUTED_COMMAND_H_
