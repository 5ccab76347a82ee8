// run_main: runs a program from its flags to its exit code. Without LibTorch; a program that uses
// LibTorch calls run_command() (run.h).
#ifndef GPIPE_COMMAND_RUN_MAIN_H_
#define GPIPE_COMMAND_RUN_MAIN_H_

#include <exception>
#include <functional>
#include <string>

#include "command/exit_codes.h"
#include "command/flags.h"

namespace gpipe::command {

// A program's work; it returns the exit code. Null: no work, exit code 0.
using Work = std::function<int()>;

// The name of the project, for --version.
inline constexpr char kProject[] = "GPipe for C++, no release yet";

// The exit code of an error: 2 for std::invalid_argument, otherwise 1.
int exit_code_of(const std::exception& error);

// What programs may have of their own: the answer to --version, exit codes and messages.
struct MainOptions {
  std::string version = kProject;  // the answer to --version
  FlagSet flags = {};              // flags that the program does not define with ABSL_FLAG
  // The exit code for an error before the work: kUsageExitCode for wrong usage.
  std::function<int(const std::exception& error)> code = exit_code_of;
  // The message for an error.
  std::function<std::string(const std::exception& error)> message =
      [](const std::exception& error) { return error.what(); };
  // The message for wrong usage, in place of `message`; if it is empty, nothing is printed. Null:
  // `message` is used.
  std::function<std::string(const std::exception& mistake)> says = nullptr;
};

// Reads the command line, calls `prepare`, and does the work that `prepare` returns. `usage` begins
// the answer to --help. Errors go to stderr.
//
// Exit codes: that of the work; `options.code` for an error in the flags or in `prepare`; 130 for
// Interrupted (interrupt.h) and 1 for any other exception of the work; 1 if the answer to --help or
// the output of successful work cannot be written.
int run_main(int argc, const char* const* argv, const std::string& usage,
             const std::function<Work()>& prepare, const MainOptions& options = {});

// The same for a program without a separate `prepare`: an exception of `run` counts as an error
// before the work.
int run_main(int argc, const char* const* argv, const std::string& usage, void (*run)());

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_RUN_MAIN_H_
