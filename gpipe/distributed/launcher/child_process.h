// ChildProcess: a process that this one starts. Finds its program, starts it, and describes how it
// ended.
#ifndef GPIPE_DISTRIBUTED_LAUNCHER_CHILD_PROCESS_H_
#define GPIPE_DISTRIBUTED_LAUNCHER_CHILD_PROCESS_H_

#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpipe::distributed {

// Thrown if a program cannot be started for a reason that trying again would not change.
class StartError : public std::runtime_error {
 public:
  StartError(const std::string& what, int exit_code)
      : std::runtime_error(what), exit_code_(exit_code) {}

  // The exit code that shells use: 127 if there is no such program, 126 if it cannot be run.
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

// The file that a shell in the folder `directory` runs for `program`, found by `path` (PATH) if it
// has no slash. Throws StartError.
std::string find_program(const std::string& program, const std::string& path,
                         const std::string& directory);

// The parent's former state. The parent has changed it for itself, and a child gets it back.
struct ParentState {
  sigset_t signal_mask;
  struct sigaction pipe_signal;
  struct sigaction child_signal;
  unsigned long open_files;  // the soft limit
};

enum class ChildInput : uint8_t { kNothing, kParents, kPipe };

struct ChildOptions {
  std::string program;                 // from find_program()
  std::vector<std::string> arguments;  // the first is the program's name
  std::vector<std::string> environment;
  std::string directory;  // to start in; empty: the parent's
  ChildInput input = ChildInput::kNothing;
  bool shares_error = false;          // with the parent; false: a pipe
  std::vector<int> cores;             // to bind the child to; empty: all
  std::optional<ParentState> parent;  // none: the parent has not changed it
};

// A running process. It leads a session and a process group of its own, and dies if its parent
// does. Reading `output` and `error` does not block. This struct owns nothing: its user closes the
// descriptors, of which those without a pipe are -1, and waits for the process.
struct ChildProcess {
  pid_t pid = -1;
  int input = -1;
  int output = -1;
  int error = -1;
};

// Returns when the program runs. Throws StartError; then no process is left.
//
// Requirements: the calling thread lives as long as the parent does. The parent has one thread, and
// its descriptors 0 to 2 are open.
ChildProcess start_child(const ChildOptions& options);

// A text like "ended with exit code 3", or "was ended by SIGSEGV (signal 11), core dumped".
// `status`: from wait().
std::string describe_end(int status);

// A text like "SIGKILL (signal 9)".
std::string describe_signal(int signal);

// The exit code by which a shell reports a status: 128 plus the signal's number if a signal ended
// the process.
int exit_code_of(int status);

// Whether a signal has stopped the process.
bool is_stopped(pid_t pid);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_LAUNCHER_CHILD_PROCESS_H_
