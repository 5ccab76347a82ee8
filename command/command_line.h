// Command line: Abseil's flags, with this project's treatment of mistakes.
#ifndef GPIPE_COMMAND_COMMAND_LINE_H_
#define GPIPE_COMMAND_COMMAND_LINE_H_

#include <ostream>
#include <string>

namespace gpipe::command {

// What the command line asks for.
enum class Request {
  kRun,
  kNothing,  // --help or --version: `out` has the answer
};

// Sets the program's flags (ABSL_FLAG) from "--name=value", "--name value", "--name" and "--noname"
// (booleans). `usage` begins the answer to --help. Unlike absl::ParseCommandLine it does not end
// the process and has no --flagfile. Throws std::invalid_argument for anything that is not a flag
// or a value of one, with the flag that was probably meant; flags before the mistake are then set.
Request read_command_line(int argc, const char* const* argv, const std::string& usage,
                          std::ostream& out);

// "LibTorch 2.11.0, built with optimization, with CUDA", for --version and reports.
std::string describe_build();

// A word of a command line as a shell takes it: as it is, or in single quotes.
std::string quoted_for_shell(const std::string& word);

// Whether this program was built with -c opt.
bool is_optimized();

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_COMMAND_LINE_H_
