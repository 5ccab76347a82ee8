// command_line: what programs print about themselves.
#ifndef GPIPE_COMMAND_COMMAND_LINE_H_
#define GPIPE_COMMAND_COMMAND_LINE_H_

#include <string>

namespace gpipe::command {

// The answer to --version: names this project and the LibTorch that it is built with.
std::string version_text();

// A text like "LibTorch 2.11.0, built with optimization, with CUDA", for --version and reports.
std::string describe_build();

// Quotes a word of a command line for a shell, in single quotes if that is necessary.
std::string quoted_for_shell(const std::string& word);

// Whether this program was built with -c opt.
bool is_optimized();

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_COMMAND_LINE_H_
