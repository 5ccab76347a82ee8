// run_without_torch: the frame of a program that needs no LibTorch, from its flags to its exit
// code.
#ifndef GPIPE_COMMAND_RUN_WITHOUT_TORCH_H_
#define GPIPE_COMMAND_RUN_WITHOUT_TORCH_H_

#include <functional>
#include <string>

namespace gpipe::command {

// run_command() (run.h) without what needs LibTorch. Reads the command line (`usage` begins the
// answer to --help) and calls `run`. Errors go to stderr. Exit codes: 2 for wrong usage, which is
// std::invalid_argument; 1 for any other error.
int run_without_torch(int argc, const char* const* argv, const std::string& usage,
                      const std::function<void()>& run);

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_RUN_WITHOUT_TORCH_H_
