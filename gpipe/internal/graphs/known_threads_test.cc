#include "gpipe/internal/graphs/known_threads.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

namespace gpipe::internal {
namespace {

void on_another_thread(const std::function<void()>& body) { std::thread(body).join(); }

TEST(KnownThreads, KnowsTheThreadsThatWereAdded) {
  KnownThreads threads;
  EXPECT_FALSE(threads.has_this());
  EXPECT_FALSE(threads.add_this());
  EXPECT_TRUE(threads.has_this());
  EXPECT_TRUE(threads.add_this());
  on_another_thread([&] { EXPECT_FALSE(threads.has_this()); });
}

// A thread's id may be given to the next thread, which is not known because of that.
TEST(KnownThreads, DoesNotTakeANewThreadForAnEarlierOne) {
  KnownThreads threads;
  on_another_thread([&] { threads.add_this(); });
  for (int i = 0; i < 10; ++i) on_another_thread([&] { EXPECT_FALSE(threads.has_this()); });
}

TEST(KnownThreads, ForgetsTheThreadThatWasAddedFirst) {
  KnownThreads threads;
  threads.add_this();
  for (int i = 0; i < 15; ++i) on_another_thread([&] { threads.add_this(); });
  EXPECT_TRUE(threads.has_this());
  on_another_thread([&] { threads.add_this(); });
  EXPECT_FALSE(threads.has_this());
}

}  // namespace
}  // namespace gpipe::internal
