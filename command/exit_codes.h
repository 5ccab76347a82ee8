// exit_codes: the exit codes of a command, besides 0 and kInterruptedExitCode (interrupt.h).
#ifndef GPIPE_COMMAND_EXIT_CODES_H_
#define GPIPE_COMMAND_EXIT_CODES_H_

namespace gpipe::command {

constexpr int kErrorExitCode = 1;
constexpr int kUsageExitCode = 2;

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_EXIT_CODES_H_
