#include "gpipe/distributed/meet/detached_calls.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>

namespace gpipe::distributed {
namespace {

using Clock = std::chrono::steady_clock;

TEST(DetachedCalls, GiveWhatTheCallReturnsOrThrows) {
  DetachedCalls calls;
  EXPECT_EQ(calls.begin([] { return std::string("text"); }).get(), "text");
  auto throws = calls.begin([]() -> int { throw std::out_of_range("no such key"); });
  EXPECT_THROW(throws.get(), std::out_of_range);
}

// The destructor does not wait for a call that does not end, and the call keeps what it owns.
TEST(DetachedCalls, OneThatDoesNotEndHoldsNobodyUp) {
  std::promise<void> never;
  auto owned = std::make_shared<int>(1);
  const std::weak_ptr<int> observed = owned;
  const Clock::time_point begin = Clock::now();
  {
    DetachedCalls calls;
    // The call owns an object, which must live until the call ends.
    auto result = calls.begin([owned = std::move(owned), wait = never.get_future().share()] {
      wait.wait();
      return *owned;
    });
    EXPECT_EQ(result.wait_for(std::chrono::milliseconds(1)), std::future_status::timeout);
  }
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  EXPECT_FALSE(observed.expired());
  never.set_value();
  const Clock::time_point limit = Clock::now() + std::chrono::seconds(30);
  while (!observed.expired() && Clock::now() < limit) std::this_thread::yield();
  EXPECT_TRUE(observed.expired());
}

TEST(DetachedCalls, ThoseThatAreAboutToEndAreWaitedFor) {
  std::promise<void> soon;
  auto owned = std::make_shared<int>(1);
  const std::weak_ptr<int> observed = owned;
  {
    DetachedCalls calls;
    (void)calls.begin(
        [owned = std::move(owned), wait = soon.get_future().share()] { wait.wait(); });
    soon.set_value();
  }
  EXPECT_TRUE(observed.expired());
}

}  // namespace
}  // namespace gpipe::distributed
