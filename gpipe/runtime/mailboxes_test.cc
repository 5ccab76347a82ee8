#include "gpipe/runtime/mailboxes.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

namespace gpipe::internal {
namespace {

TEST(Mailboxes, GivesWhatWasPut) {
  Mailboxes<std::string> mailboxes({1, 2});
  mailboxes.put(1, 1, "b");
  mailboxes.put(1, 0, "a");
  mailboxes.put(0, 0, "c");
  std::string text;
  ASSERT_TRUE(mailboxes.take(1, 0, &text));
  EXPECT_EQ(text, "a");
  ASSERT_TRUE(mailboxes.take(1, 1, &text));
  EXPECT_EQ(text, "b");
  ASSERT_TRUE(mailboxes.take(0, 0, &text));
  EXPECT_EQ(text, "c");
}

TEST(Mailboxes, TakeEmptiesTheSlot) {
  Mailboxes<std::shared_ptr<int>> mailboxes({1});
  auto value = std::make_shared<int>(1);
  mailboxes.put(0, 0, value);
  std::shared_ptr<int> taken;
  ASSERT_TRUE(mailboxes.take(0, 0, &taken));
  EXPECT_EQ(value.use_count(), 2);
}

// take() empties the slot, too, if moving the payload copies it.
TEST(Mailboxes, TakeEmptiesTheSlotOfWhatCannotBeMoved) {
  struct Copied {
    Copied() = default;
    explicit Copied(std::shared_ptr<int> v) : value(std::move(v)) {}
    Copied(const Copied&) = default;
    Copied& operator=(const Copied&) = default;
    std::shared_ptr<int> value;
  };
  Mailboxes<Copied> mailboxes({1});
  auto value = std::make_shared<int>(1);
  mailboxes.put(0, 0, Copied(value));
  Copied taken;
  ASSERT_TRUE(mailboxes.take(0, 0, &taken));
  EXPECT_EQ(value.use_count(), 2);
}

TEST(Mailboxes, TakeWaits) {
  for (int round = 0; round < 200; ++round) {
    Mailboxes<int> mailboxes({1, 1});
    std::thread other([&] {
      int value = 0;
      if (mailboxes.take(1, 0, &value)) mailboxes.put(0, 0, value + 1);
    });
    mailboxes.put(1, 0, round);
    int value = 0;
    EXPECT_TRUE(mailboxes.take(0, 0, &value));
    EXPECT_EQ(value, round + 1);
    other.join();
  }
}

TEST(Mailboxes, CancelWakesThreadsThatWait) {
  for (int round = 0; round < 200; ++round) {
    Mailboxes<int> mailboxes({1, 1});
    bool taken[2] = {true, true};
    std::thread a([&] {
      int v;
      taken[0] = mailboxes.take(0, 0, &v);
    });
    std::thread b([&] {
      int v;
      taken[1] = mailboxes.take(1, 0, &v);
    });
    // In most rounds cancel() comes before the threads call take(). In each twentieth round they
    // already sleep in it.
    if (round % 20 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    mailboxes.cancel();
    a.join();
    b.join();
    EXPECT_FALSE(taken[0]);
    EXPECT_FALSE(taken[1]);
    EXPECT_TRUE(mailboxes.cancelled());
  }
}

TEST(Mailboxes, ReleasesWhatNobodyTook) {
  auto value = std::make_shared<int>(1);
  {
    Mailboxes<std::shared_ptr<int>> mailboxes({2});
    mailboxes.put(0, 1, value);
    mailboxes.cancel();
    EXPECT_EQ(value.use_count(), 2);
  }
  EXPECT_EQ(value.use_count(), 1);
}

}  // namespace
}  // namespace gpipe::internal
