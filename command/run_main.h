// run_main: the frame of every program, from its flags to its exit code. Without LibTorch; programs
// that have it begin with run_command (run.h).
#ifndef GPIPE_COMMAND_RUN_MAIN_H_
#define GPIPE_COMMAND_RUN_MAIN_H_

#include <exception>
#include <functional>
#include <string>

#include "command/exit_codes.h"
#include "command/flags.h"

namespace gpipe::command {

// What a program does once it is known; its result is the exit code. Null: nothing, with exit code
// 0.
using Work = std::function<int()>;

// What this is, for --version.
inline constexpr char kProject[] = "GPipe for C++, no release yet";

// 2 for std::invalid_argument, else 1.
int exit_code_of(const std::exception& error);

// In what programs differ.
struct MainOptions {
  std::string version = kProject;  // the answer to --version
  AbsentFlags absent = {};
  // The exit code of an error before the work: kUsageExitCode for wrong usage.
  std::function<int(const std::exception& error)> code = exit_code_of;
  // What is said of an error.
  std::function<std::string(const std::exception& error)> message =
      [](const std::exception& error) { return error.what(); };
  // What is said of wrong usage instead; nothing, if that is empty. Null: `message`.
  std::function<std::string(const std::exception& mistake)> says = nullptr;
};

// Reads the command line (`usage` begins the answer to --help), lets `prepare` find out what is to
// be done, and does that. Errors go to stderr.
//
// Exit codes: that of the work; `options.code` for what the flags or `prepare` throw; 130 for
// Interrupted (interrupt.h) and 1 for anything else that the work throws; 1 if the answer to
// --help, or what a work that went well has printed, cannot be written.
int run_main(int argc, const char* const* argv, const std::string& usage,
             const std::function<Work()>& prepare, const MainOptions& options = {});

// The same for a program that finds out while it works: whatever `run` throws counts as thrown
// before the work.
int run_main(int argc, const char* const* argv, const std::string& usage, void (*run)());

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_RUN_MAIN_H_
