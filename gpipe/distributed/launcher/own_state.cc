#include "gpipe/distributed/launcher/own_state.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>

namespace gpipe::distributed {

OwnState::OwnState() {
  // Opens standard streams that are closed, so that no pipe gets one of their descriptors.
  int fd = -1;
  do {
    fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  } while (fd >= 0 && fd <= STDERR_FILENO && fcntl(fd, F_SETFD, 0) == 0);
  if (fd >= 0) close(fd);

  struct sigaction action = {};
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, &parent_.pipe_signal);
  // SIGCHLD gets its default handler: a process that ignores SIGCHLD is not told how its children
  // end, and the children would inherit that.
  action.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &action, &parent_.child_signal);

  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGTSTP}) {
    // A signal that is ignored already stays ignored, because nohup, or a shell for its background
    // jobs, has set that.
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&signals, signal);
  }
  sigprocmask(SIG_BLOCK, &signals, &parent_.signal_mask);
  signals_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);

  // The limit of open files is raised, because each process needs two pipes and two files.
  rlimit files = {};
  getrlimit(RLIMIT_NOFILE, &files);
  parent_.open_files = files.rlim_cur;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);

  // This process adopts its children's children when their parent ends. Otherwise they would stay
  // zombies in a container whose first process does not reap them.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

OwnState::~OwnState() { close(signals_); }

}  // namespace gpipe::distributed
