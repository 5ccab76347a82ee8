// launch: starts the processes of one run on this machine, and reports how each of them ends.
//
// It does not know what they compute. It sets the environment variables that torchrun would set
// (environment.h reads them), so programs need not know which launcher has started them.
#ifndef GPIPE_DISTRIBUTED_LAUNCHER_LAUNCH_H_
#define GPIPE_DISTRIBUTED_LAUNCHER_LAUNCH_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::distributed {

struct LaunchOptions {
  int64_t processes = 1;
  // The program and its arguments.
  std::vector<std::string> command;
  // The folder in which they start and to which a program's path is relative. Default: the current.
  std::string directory;
  // An existing folder for the unchanged output of each process: rank_0.out, rank_0.err, ...
  // Default: no file is written.
  std::string log_directory;
  // How long the other processes may go on after the first has failed: they notice it themselves
  // and say why they stop. Then they get SIGTERM.
  std::chrono::milliseconds grace = std::chrono::seconds(30);
  // The limit of grace if the first process has ended with exit code 2, by which programs say that
  // they were called wrongly. The others may still wait for it to connect, which could take
  // minutes.
  std::chrono::milliseconds usage_grace = std::chrono::seconds(5);
  // How long after SIGTERM a process gets SIGKILL.
  std::chrono::milliseconds kill_after = std::chrono::seconds(5);
  // true: rank 0 reads this process's standard input; false: /dev/null, as all other ranks do.
  bool input = false;
  // Each process gets a share of this process's cores (core_shares.h).
  bool bind_cores = false;
  // How many processes that died may be started again, over the whole run. It counts only for
  // programs that go on after a death (gpipe/resilient/meet_again.h).
  int64_t restarts = 0;
  // How many more processes are started, which wait for the death of another one. WORLD_SIZE counts
  // them, too, so it counts only for such programs.
  int64_t spares = 0;
};

// Starts the processes. Forwards what they write, line by line, with "[rank] " before each line,
// and forwards signals (Ctrl-C) to them and their children. Returns when all have ended. The result
// is 0 if each ended with 0, and otherwise the exit code of the first process that did not, as
// shells report it (128 plus a signal's number). Unless a signal ended that process, it may only
// have reported another's failure. Events are reported on standard error, "launch: ...".
//
// If the program has asked for the meeting place (meeting_place.h), a signal that ends a process
// does not end the run: the process is started again, or the others go on without it. An exit code
// or SIGABRT, which the program chose, ends the run as otherwise. If nobody has asked, the process
// is started again if `restarts` allows it; otherwise its end ends the run. If a process is lost
// when others of its world have ended with 0, the result is the exit code of the lost process.
//
// Guarantees: none of the processes outlives this one, however it ends, nor do their children that
// stay in their process group.
//
// Requirements: a process with one thread. This changes the process's signals, so it must be the
// last thing that the process does.
//
// Throws: StartError (child_process.h) if the program cannot be started, std::runtime_error if
// something else that is needed is missing. Then no process is left.
int launch(const LaunchOptions& options);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_LAUNCHER_LAUNCH_H_
