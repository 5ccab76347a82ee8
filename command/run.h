// run_command: the frame of every command with LibTorch, from its flags to its exit code.
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

// The message of an exception, without the C++ backtrace that LibTorch appends.
std::string message_of(const std::exception& error);

// Whether it says that memory ran out: the CPU's or an accelerator's.
bool is_out_of_memory(const std::exception& error);

// What a process says of its wrong usage: nothing, if another one says it.
using SaysOfMistake = std::function<std::string(const std::exception& mistake)>;

// run_main() (run_main.h), with these options, of a program with LibTorch: its waiting threads
// sleep, and a reader that has seen enough does not end it.
//
// `prepare` throws std::invalid_argument or c10::ValueError for wrong usage, so whatever can be
// found wrong before the work belongs there.
//
// Called first in main: it may start the program once more (wait_policy.h), and whatever was done
// before is done again then.
//
// Exit codes: 2 for wrong usage; 130 for Interrupted (interrupt.h); 1 for anything else that
// `prepare` or the work throws, and if what it has printed cannot be written.
int run_command(int argc, const char* const* argv, const std::string& usage,
                const std::function<Work()>& prepare, const AbsentFlags& absent = {},
                const SaysOfMistake& says = nullptr);

// The same for a command whose flags `read` makes settings of, by which `run` works.
template <typename Settings>
int run_command(int argc, const char* const* argv, const std::string& usage,
                const std::common_type_t<std::function<Settings()>>& read,
                int (*run)(const Settings&), const AbsentFlags& absent = {}) {
  const auto prepare = [&]() -> Work { return [settings = read(), run] { return run(settings); }; };
  return run_command(argc, argv, usage, prepare, absent);
}

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_RUN_H_
