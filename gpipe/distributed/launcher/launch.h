// launch: starts the processes of one run on this machine, and says how each of them ends.
//
// It knows nothing of what they compute. What they find in their environment is what torchrun would
// have set (environment.h reads it), so programs need not know who has started them.
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
  // The folder that they start in, and that a program's path is relative to. Default: this one.
  std::string directory;
  // An existing folder for rank_0.out, rank_0.err, ... : what each process writes, as it is.
  // Default: none.
  std::string log_directory;
  // How long the others may go on when the first has failed: they find out themselves, and say why
  // they stop. Then they get SIGTERM.
  std::chrono::milliseconds grace = std::chrono::seconds(30);
  // As grace, at most, where the first has ended with exit code 2, by which programs say that they
  // were called wrongly: the others may still wait for it to connect, and would wait for minutes.
  std::chrono::milliseconds usage_grace = std::chrono::seconds(5);
  // How long after SIGTERM they are killed.
  std::chrono::milliseconds kill_after = std::chrono::seconds(5);
  // Rank 0 reads this process's standard input; otherwise /dev/null, as all others do.
  bool input = false;
  // Each process gets a share of this process's cores (core_shares.h).
  bool bind_cores = false;
};

// Starts them, passes on what they write, line by line, with "[rank] " before each line, and
// signals (Ctrl-C) to them and their children, and returns when all have ended: 0 if each ended
// with 0, else the exit code of the first that did not, as shells report it (128 and a signal's
// number). Unless a signal ended that one, it may only have reported another's failure. What
// happens is told on standard error, "launch: ...".
//
// Guarantees: none of the processes outlives this one, however it ends, nor do their children that
// stay in their process group.
//
// Requirements: a process with one thread. It changes the process's signals, and is to be the last
// that it does.
//
// Throws: StartError (child_process.h) if the program cannot be started, std::runtime_error if
// something else is missing. Then no process is left.
int launch(const LaunchOptions& options);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_LAUNCHER_LAUNCH_H_
