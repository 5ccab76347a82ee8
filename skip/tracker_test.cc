#include "skip/tracker.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

namespace gpipe::skip {
namespace {

using ::testing::HasSubstr;

const Key kFoo{Namespace::common(), "foo"};
const Key kBar{Namespace::common(), "bar"};

template <typename F>
std::string error_of(F f) {
  try {
    f();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(TrackerTest, PopGivesTheVeryTensorStashed) {
  Tracker tracker;
  const auto tensor = at::ones({2});
  tracker.stash(kFoo, tensor);
  EXPECT_TRUE(tracker.contains(kFoo));
  EXPECT_FALSE(tracker.contains(kBar));
  EXPECT_EQ(tracker.size(), 1u);
  EXPECT_TRUE(tracker.pop(kFoo).is_same(tensor));
  EXPECT_EQ(tracker.size(), 0u);
}

TEST(TrackerTest, ATensorIsNotHeldAfterItsPop) {
  Tracker tracker;
  auto tensor = at::ones({2});
  tracker.stash(kFoo, tensor);
  EXPECT_EQ(tensor.use_count(), 2u);
  tracker.pop(kFoo);
  EXPECT_EQ(tensor.use_count(), 1u);
}

TEST(TrackerTest, SameNameInTwoNamespacesIsTwoEntries) {
  Tracker tracker;
  const Namespace ns;
  tracker.stash(kFoo, at::zeros({1}));
  tracker.stash({ns, "foo"}, at::ones({1}));
  EXPECT_EQ(tracker.size(), 2u);
  EXPECT_EQ(tracker.pop({ns, "foo"}).item<float>(), 1);
  EXPECT_EQ(tracker.pop(kFoo).item<float>(), 0);
}

TEST(TrackerTest, AnUndefinedTensorIsAPayload) {
  Tracker tracker;
  tracker.stash(kFoo, at::Tensor());
  EXPECT_TRUE(tracker.contains(kFoo));
  EXPECT_FALSE(tracker.pop(kFoo).defined());
  EXPECT_FALSE(tracker.contains(kFoo));
}

TEST(TrackerTest, PopOfWhatIsNotThereSaysWhatIs) {
  Tracker tracker;
  const Namespace ns;
  tracker.stash(kBar, at::ones({1}));
  const std::string error = error_of([&] { tracker.pop({ns, "foo"}); });
  EXPECT_THAT(error, HasSubstr("'foo' (namespace " + std::to_string(ns.id()) + ")"));
  EXPECT_THAT(error, HasSubstr("not stashed"));
  EXPECT_THAT(error, HasSubstr("waiting are: 'bar'."));
  EXPECT_EQ(tracker.size(), 1u);
}

TEST(TrackerTest, WhatIsThereIsListedInOneOrder) {
  Tracker tracker;
  EXPECT_THAT(error_of([&] { tracker.pop(kFoo); }), HasSubstr("waiting are: none."));
  for (const char* name : {"c", "a", "d", "b"}) {
    tracker.stash({Namespace::common(), name}, at::ones({1}));
  }
  EXPECT_THAT(error_of([&] { tracker.pop(kFoo); }), HasSubstr("waiting are: 'a', 'b', 'c', 'd'."));
}

TEST(TrackerTest, TakeAnswersInsteadOfThrowing) {
  Tracker tracker;
  EXPECT_FALSE(tracker.take(kFoo).has_value());
  tracker.stash(kFoo, at::Tensor());
  ASSERT_TRUE(tracker.take(kFoo).has_value());
  EXPECT_FALSE(tracker.take(kFoo).has_value());
}

TEST(TrackerTest, StashingAgainReplaces) {
  Tracker tracker;
  tracker.stash(kFoo, at::zeros({1}));
  tracker.stash(kFoo, at::ones({1}));
  EXPECT_EQ(tracker.size(), 1u);
  EXPECT_EQ(tracker.pop(kFoo).item<float>(), 1);
}

TEST(TrackerTest, ClearLetsGoOfEverything) {
  Tracker tracker;
  auto tensor = at::ones({1});
  tracker.stash(kFoo, tensor);
  tracker.clear();
  EXPECT_EQ(tracker.size(), 0u);
  EXPECT_EQ(tensor.use_count(), 1u);
}

TEST(TrackerTest, EveryThreadHasItsOwn) {
  Tracker* const mine = &Tracker::current();
  EXPECT_EQ(mine, &Tracker::current());
  mine->clear();
  mine->stash(kFoo, at::ones({1}));
  size_t others_size = 1;
  Tracker* other = nullptr;
  std::thread([&] {
    other = &Tracker::current();
    others_size = other->size();
  }).join();
  EXPECT_NE(other, mine);
  EXPECT_EQ(others_size, 0u);
  mine->clear();
}

TEST(TrackerScopeTest, IsCurrentWhileItLives) {
  Tracker* const before = &Tracker::current();
  Tracker outer, inner;
  {
    TrackerScope outer_scope(outer);
    EXPECT_EQ(&Tracker::current(), &outer);
    {
      TrackerScope inner_scope(inner);
      EXPECT_EQ(&Tracker::current(), &inner);
    }
    EXPECT_EQ(&Tracker::current(), &outer);
    Tracker* other = nullptr;
    std::thread([&] { other = &Tracker::current(); }).join();
    EXPECT_NE(other, &outer);
  }
  EXPECT_EQ(&Tracker::current(), before);
}

TEST(TrackerScopeTest, AnExceptionEndsIt) {
  Tracker* const before = &Tracker::current();
  Tracker tracker;
  try {
    TrackerScope scope(tracker);
    throw std::runtime_error("failed");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(&Tracker::current(), before);
}

TEST(ScopeTest, FailedWorkLeavesNothingBehind) {
  Tracker& thread_tracker = Tracker::current();
  thread_tracker.clear();
  auto tensor = at::ones({1});
  try {
    Scope scope;
    Tracker::current().stash(kFoo, tensor);
    throw std::runtime_error("failed");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(thread_tracker.size(), 0u);
  EXPECT_EQ(tensor.use_count(), 1u);
}

TEST(ScopeTest, FinishNamesWhatWasNotPopped) {
  Scope scope;
  EXPECT_EQ(error_of([&] { scope.finish(); }), "no error");
  Tracker::current().stash(kFoo, at::ones({1}));
  Tracker::current().stash(kBar, at::ones({1}));
  EXPECT_THAT(error_of([&] { scope.finish(); }), HasSubstr("never popped: 'bar', 'foo'"));
}

}  // namespace
}  // namespace gpipe::skip
