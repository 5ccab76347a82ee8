#include "gpipe/distributed/sockets/private_descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>

namespace gpipe::distributed {
namespace {

struct Pair {
  int own = -1;
  int other = -1;
};
Pair connected() {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {ends[0], ends[1]};
}

// Runs `child` in a child of fork() and returns its result.
int in_child(const std::function<int()>& child) {
  const pid_t pid = fork();
  if (pid == 0) _exit(child());
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// A child that lives until this is destroyed.
class Child {
 public:
  // Returns when the child runs, so that fork() has returned there.
  Child() {
    EXPECT_EQ(pipe(end_), 0);
    EXPECT_EQ(pipe(begin_), 0);
    char byte = 0;
    pid_ = fork();
    if (pid_ == 0) {
      close(end_[1]);
      if (write(begin_[1], &byte, 1) != 1) _exit(1);
      _exit(read(end_[0], &byte, 1) == 0 ? 0 : 1);
    }
    EXPECT_EQ(read(begin_[0], &byte, 1), 1);
  }
  ~Child() {
    for (const int end : {end_[0], end_[1], begin_[0], begin_[1]}) close(end);
    waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

 private:
  int begin_[2] = {-1, -1};
  int end_[2] = {-1, -1};
  pid_t pid_ = -1;
};

bool has_ended(int descriptor) {
  char byte;
  return recv(descriptor, &byte, 1, MSG_DONTWAIT) == 0;
}

TEST(PrivateDescriptors, AChildKeepsNoneOpen) {
  const Pair kept = connected();
  const Pair opened = connected();
  const Pair private_pair = connected();
  const Pair again = connected();
  const int duplicate = open_private([&] { return dup(opened.own); });
  ASSERT_GE(duplicate, 0);
  close(opened.own);
  make_private(private_pair.own);
  make_private(again.own);
  make_public(again.own);
  const Child child;
  // The parent closes its descriptors while the child lives. The other ends must see the end of the
  // private ones only.
  close(kept.own);
  EXPECT_FALSE(has_ended(kept.other));
  close_private(duplicate);
  EXPECT_TRUE(has_ended(opened.other));
  close_private(private_pair.own);
  EXPECT_TRUE(has_ended(private_pair.other));
  close_private(again.own);
  EXPECT_FALSE(has_ended(again.other));
  for (const Pair& pair : {kept, opened, private_pair, again}) close(pair.other);
}

// The copy of the socket's owner in the child will close the descriptor's number later. It must not
// close a file that was opened meanwhile, so the number must stay in use.
TEST(PrivateDescriptors, AChildKeepsTheNumber) {
  const Pair pair = connected();
  make_private(pair.own);
  EXPECT_EQ(in_child([&] {
              const int next = open("/dev/null", O_RDONLY);
              const bool is_free = next == pair.own;
              const bool is_connected = send(pair.own, "x", 1, MSG_NOSIGNAL) == 1;
              const bool is_closed_at_exec = (fcntl(pair.own, F_GETFD) & FD_CLOEXEC) != 0;
              close_private(pair.own);
              // The child may fork again. It has no private descriptors, so its own child keeps all
              // descriptors.
              const int fresh = dup(next);
              const int status = in_child([&] { return fcntl(fresh, F_GETFD) < 0 ? 1 : 0; });
              return is_free || is_connected || !is_closed_at_exec || status != 0 ? 1 : 0;
            }),
            0);
  // The parent's descriptor is unchanged.
  EXPECT_EQ(send(pair.own, "x", 1, MSG_NOSIGNAL), 1);
  close_private(pair.own);
  close(pair.other);
}

TEST(PrivateDescriptors, WhatCannotBeOpenedIsNone) {
  EXPECT_EQ(open_private([] { return open("/no/such/file", O_RDONLY); }), -1);
  EXPECT_EQ(errno, ENOENT);
}

}  // namespace
}  // namespace gpipe::distributed
