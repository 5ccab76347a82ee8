// ChildProcess: one process that the launcher has started, from finding its program to how it
// ended.
#ifndef GPIPE_DISTRIBUTED_LAUNCHER_CHILD_PROCESS_H_
#define GPIPE_DISTRIBUTED_LAUNCHER_CHILD_PROCESS_H_

#include <sys/types.h>

#include <csignal>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpipe::distributed {

// A program cannot be started, however often one tries.
class StartError : public std::runtime_error {
 public:
  StartError(const std::string& what, int exit_code)
      : std::runtime_error(what), exit_code_(exit_code) {}

  // As shells have it: 127 if there is no such program, 126 if it cannot be run.
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

// The file that a shell in the folder `directory` runs for `program`, found by `path` (PATH) if it
// has no slash. Throws StartError.
std::string find_program(const std::string& program, const std::string& path,
                         const std::string& directory);

// What a child gets back of what its parent has changed for itself.
struct ParentState {
  sigset_t signal_mask;
  struct sigaction pipe_signal;
  struct sigaction child_signal;
  unsigned long open_files;  // the soft limit
};

struct ChildOptions {
  std::string program;                 // from find_program()
  std::vector<std::string> arguments;  // the first is the name
  std::vector<std::string> environment;
  std::string directory;       // to start in; empty: the parent's
  bool inherit_input = false;  // otherwise it reads /dev/null
  std::vector<int> cores;      // to bind it to; empty: all
  ParentState parent;
};

// A running process. It leads a session and a process group of its own, and dies if its parent
// does. The ends of its outputs do not block. Not owned: nothing is closed or ended by itself.
struct ChildProcess {
  pid_t pid = -1;
  int output = -1;
  int error = -1;
};

// Returns when the program runs. Throws StartError; nothing is left of it then.
//
// Requirements: called on the thread that lives as long as the parent does; a process with one
// thread, whose descriptors 0 to 2 are open.
ChildProcess start_child(const ChildOptions& options);

// "ended with exit code 3", "was ended by SIGSEGV (signal 11), core dumped": of a status of wait().
std::string describe_end(int status);

// "SIGKILL (signal 9)".
std::string describe_signal(int signal);

// The exit code by which a shell reports it: 128 and the signal's number, if one ended the process.
int exit_code_of(int status);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_LAUNCHER_CHILD_PROCESS_H_
