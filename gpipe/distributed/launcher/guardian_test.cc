#include "gpipe/distributed/launcher/guardian.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <memory>

namespace gpipe::distributed {
namespace {

class GuardianTest : public ::testing::Test {
 protected:
  void SetUp() override { std::signal(SIGPIPE, SIG_IGN); }

  // Starts a process that does nothing, in a group of its own.
  pid_t start() {
    const pid_t child = fork();
    if (child == 0) {
      setpgid(0, 0);
      for (;;) pause();
    }
    setpgid(child, child);
    return child;
  }

  int wait_for(pid_t child) {
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return status;
  }
};

TEST_F(GuardianTest, KillsTheGroupsOfAParentThatWasKilled) {
  const pid_t watched = start();
  const pid_t forgotten = start();
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    Guardian guardian;
    guardian.watch(watched);
    guardian.watch(forgotten);
    guardian.forget(forgotten);
    [[maybe_unused]] const ssize_t told = write(ready[1], "x", 1);
    for (;;) pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  kill(parent, SIGKILL);
  wait_for(parent);
  const int status = wait_for(watched);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  EXPECT_EQ(waitpid(forgotten, nullptr, WNOHANG), 0);
  kill(forgotten, SIGTERM);
  EXPECT_EQ(WTERMSIG(wait_for(forgotten)), SIGTERM);
  close(ready[0]);
  close(ready[1]);
}

TEST_F(GuardianTest, EndsWithItsObjectAndWithItWhatIsWatched) {
  // The child is started before the guardian: as it calls no exec(), it would keep the guardian's
  // pipe open.
  const pid_t child = start();
  auto guardian = std::make_unique<Guardian>();
  guardian->watch(child);
  const pid_t pid = guardian->pid();
  guardian.reset();
  EXPECT_EQ(kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
  EXPECT_EQ(WTERMSIG(wait_for(child)), SIGKILL);
}

}  // namespace
}  // namespace gpipe::distributed
