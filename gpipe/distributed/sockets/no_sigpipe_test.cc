#include "gpipe/distributed/sockets/no_sigpipe.h"

#include <gtest/gtest.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <thread>

namespace gpipe::distributed {
namespace {

volatile std::sig_atomic_t signals_seen = 0;

class NoSigpipeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    signals_seen = 0;
    struct sigaction action {};
    action.sa_handler = [](int) { signals_seen = signals_seen + 1; };
    sigaction(SIGPIPE, &action, &before_);
  }
  void TearDown() override { sigaction(SIGPIPE, &before_, nullptr); }

  // Writes as Gloo does, to a closed connection. Returns the error; 0 if there is none.
  static int write_to_nobody() {
    int ends[2];
    if (pipe(ends) != 0) return -1;
    close(ends[0]);
    char byte = 0;
    const iovec buffer{&byte, 1};
    const int error = writev(ends[1], &buffer, 1) < 0 ? errno : 0;
    close(ends[1]);
    return error;
  }

 private:
  struct sigaction before_ {};
};

TEST_F(NoSigpipeTest, WithoutItASignalComes) {
  EXPECT_EQ(write_to_nobody(), EPIPE);
  EXPECT_EQ(signals_seen, 1);
}

TEST_F(NoSigpipeTest, AWriteReturnsAnErrorAndNoSignalComesLater) {
  {
    const NoSigpipe scope;
    EXPECT_EQ(write_to_nobody(), EPIPE);
    const NoSigpipe inner;
    EXPECT_EQ(write_to_nobody(), EPIPE);
  }
  EXPECT_EQ(signals_seen, 0);
  // After the scope the thread gets the signal as before.
  EXPECT_EQ(write_to_nobody(), EPIPE);
  EXPECT_EQ(signals_seen, 1);
}

TEST_F(NoSigpipeTest, ThreadsStartedInItGetNone) {
  std::thread thread;
  {
    const NoSigpipe scope;
    thread = std::thread([] { EXPECT_EQ(write_to_nobody(), EPIPE); });
  }
  thread.join();
  EXPECT_EQ(signals_seen, 0);
}

TEST_F(NoSigpipeTest, WhatThreadsOfTheProgramHaveBlockedStays) {
  std::thread([] {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    EXPECT_EQ(write_to_nobody(), EPIPE);  // the signal stays pending for the program
    {
      const NoSigpipe scope;
      EXPECT_EQ(write_to_nobody(), EPIPE);
    }
    EXPECT_EQ(signals_seen, 0);
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
    EXPECT_EQ(signals_seen, 1);
  }).join();
}

}  // namespace
}  // namespace gpipe::distributed
