// Command line: flags (flags.h), and what programs say of themselves.
#ifndef GPIPE_COMMAND_COMMAND_LINE_H_
#define GPIPE_COMMAND_COMMAND_LINE_H_

#include <ostream>
#include <string>

#include "command/flags.h"

namespace gpipe::command {

// read_flags() with --version's answer: this project and the LibTorch that it is built with.
Request read_command_line(int argc, const char* const* argv, const std::string& usage,
                          std::ostream& out, const AbsentFlags& absent = {});

// "LibTorch 2.11.0, built with optimization, with CUDA", for --version and reports.
std::string describe_build();

// A word of a command line as a shell takes it: as it is, or in single quotes.
std::string quoted_for_shell(const std::string& word);

// Whether this program was built with -c opt.
bool is_optimized();

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_COMMAND_LINE_H_
