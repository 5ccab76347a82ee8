// read_flags: parses Abseil's flags, with this project's messages for mistakes. Without LibTorch.
#ifndef GPIPE_COMMAND_FLAGS_H_
#define GPIPE_COMMAND_FLAGS_H_

#include <map>
#include <ostream>
#include <string>

namespace gpipe::command {

// The result of reading a command line.
enum class Request {
  kRun,
  kNothing,  // --help or --version: the answer was written to `out`
};

// Flags that a program does not have but that its users may try, and why: "--{name}: {why}".
using AbsentFlags = std::map<std::string, std::string>;

// Sets the program's flags (ABSL_FLAG) from "--name=value", "--name value", "--name" and "--noname"
// (booleans). The answer to --help begins with `usage`, the answer to --version is `version`.
// Unlike absl::ParseCommandLine it does not end the process and has no --flagfile. Throws
// std::invalid_argument for an unknown flag, a wrong value and any other word; the message suggests
// the closest flag, or gives the reason in `absent`. Flags before the mistake are then set.
Request read_flags(int argc, const char* const* argv, const std::string& usage,
                   const std::string& version, std::ostream& out, const AbsentFlags& absent = {});

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_FLAGS_H_
