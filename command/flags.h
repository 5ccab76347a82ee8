// read_flags: Abseil's flags, with this project's treatment of mistakes. Without LibTorch.
#ifndef GPIPE_COMMAND_FLAGS_H_
#define GPIPE_COMMAND_FLAGS_H_

#include <map>
#include <ostream>
#include <string>

namespace gpipe::command {

// What the command line asks for.
enum class Request {
  kRun,
  kNothing,  // --help or --version: `out` has the answer
};

// Flags that a program has not, but that its users may try, and why: "--{name}: {why}".
using AbsentFlags = std::map<std::string, std::string>;

// Sets the program's flags (ABSL_FLAG) from "--name=value", "--name value", "--name" and "--noname"
// (booleans). `usage` begins the answer to --help, `version` is the one to --version. Unlike
// absl::ParseCommandLine it does not end the process and has no --flagfile. Throws
// std::invalid_argument for anything that is not a flag or a value of one, with the flag that was
// probably meant, or with what `absent` says of it; flags before the mistake are then set.
Request read_flags(int argc, const char* const* argv, const std::string& usage,
                   const std::string& version, std::ostream& out, const AbsentFlags& absent = {});

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_FLAGS_H_
