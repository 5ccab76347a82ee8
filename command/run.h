// run_command: runs a command that uses LibTorch, from its flags to its exit code.
#ifndef GPIPE_COMMAND_RUN_H_
#define GPIPE_COMMAND_RUN_H_

#include <exception>
#include <functional>
#include <string>
#include <type_traits>

#include "command/exit_codes.h"
#include "command/flags.h"
#include "command/run_main.h"

namespace gpipe::command {

// Returns the message of an exception, without the C++ backtrace that LibTorch appends.
std::string message_of(const std::exception& error);

// Whether the exception says that the CPU or an accelerator ran out of memory.
bool is_out_of_memory(const std::exception& error);

// Returns the message of a process about wrong usage; empty if another process reports it.
using SaysOfMistake = std::function<std::string(const std::exception& mistake)>;

// Runs run_main() (run_main.h) for a program that uses LibTorch. Waiting threads sleep
// (wait_policy.h), and a closed reader of standard output does not end the program.
//
// `prepare` checks the usage before the work. It throws std::invalid_argument or c10::ValueError
// for wrong usage.
//
// Call it first in main: it may start the program a second time (wait_policy.h), which would repeat
// whatever was done before.
//
// Exit codes: 2 for wrong usage; 130 for Interrupted (interrupt.h); 1 for any other exception from
// `prepare` or the work, and if the output cannot be written.
int run_command(int argc, const char* const* argv, const std::string& usage,
                const std::function<Work()>& prepare, const FlagSet& flags = {},
                const SaysOfMistake& says = nullptr);

// The same for a command whose flags are read into settings: `read` returns them and `run` works by
// them.
template <typename Settings>
int run_command(int argc, const char* const* argv, const std::string& usage,
                const std::common_type_t<std::function<Settings()>>& read,
                int (*run)(const Settings&)) {
  const auto prepare = [&]() -> Work { return [settings = read(), run] { return run(settings); }; };
  return run_command(argc, argv, usage, prepare);
}

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_RUN_H_
