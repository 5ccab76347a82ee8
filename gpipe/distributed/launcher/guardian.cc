#include "gpipe/distributed/launcher/guardian.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <set>
#include <stdexcept>
#include <string>

namespace gpipe::distributed {
namespace {

// Runs in the guardian. Reads numbers from `pipe`: a group to watch, or minus a group to forget.
[[noreturn]] void guard(int pipe) {
  setsid();
  // The guardian has a name of its own, so that a killall with the launcher's name does not end it.
  // It ignores the usual signals that a user may send to all of their processes.
  prctl(PR_SET_NAME, "gpipe_guardian");
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) std::signal(signal, SIG_IGN);
  // A reader of the launcher's output must see the end of the output, so the guardian must not hold
  // these descriptors open.
  const int null = open("/dev/null", O_RDWR);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null, fd);
  std::set<pid_t> groups;
  for (;;) {
    pid_t group = 0;
    const ssize_t size = read(pipe, &group, sizeof group);
    if (size < 0 && errno == EINTR) continue;
    if (size != static_cast<ssize_t>(sizeof group)) break;
    if (group > 0) {
      groups.insert(group);
    } else {
      groups.erase(-group);
    }
  }
  for (const pid_t group : groups) kill(-group, SIGKILL);
  _exit(0);
}

}  // namespace

Guardian::Guardian() {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) == 0) pid_ = fork();
  if (pid_ == 0) {
    close(ends[1]);
    guard(ends[0]);
  }
  const int error = errno;
  close(ends[0]);
  pipe_ = ends[1];
  if (pid_ < 0) {
    close(pipe_);
    throw std::runtime_error("no further process can be started: " +
                             std::string(std::strerror(error)));
  }
}

Guardian::~Guardian() {
  close(pipe_);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guardian::tell(pid_t group) const {
  // If the guardian was killed, the launcher goes on without it.
  [[maybe_unused]] const ssize_t written = write(pipe_, &group, sizeof group);
}

void Guardian::watch(pid_t group) { tell(group); }

void Guardian::forget(pid_t group) { tell(-group); }

}  // namespace gpipe::distributed
