// run_command: the frame of a command over processes, from its flags to its exit code.
#ifndef DISTRIBUTED_COMMAND_H_
#define DISTRIBUTED_COMMAND_H_

#include <functional>
#include <string>

#include "gpipe/world.h"

namespace distributed {

// As gpipe::command::run_command (command/run.h), in each of the processes that a launcher has
// started, or in one alone. `read` makes settings of the flags; `prepare` finds out, together with
// the other processes, what is to be done, and returns the work.
//
// What either throws as std::invalid_argument or c10::ValueError is wrong usage: all processes end
// with exit code 2, also those that have found nothing, and rank 0 alone says why. If not all have
// found it, it says which ones have.
//
// So a process connects to the others before it ends because of its flags. If it cannot, it says by
// itself what is wrong.
int run_command(int argc, const char* const* argv, const std::string& usage,
                const std::function<void()>& read,
                const std::function<std::function<int()>(const gpipe::World& processes)>& prepare);

}  // namespace distributed

#endif  // DISTRIBUTED_COMMAND_H_
