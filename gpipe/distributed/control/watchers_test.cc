#include "gpipe/distributed/control/watchers.h"

#include <gtest/gtest.h>

namespace gpipe::distributed {
namespace {

TEST(Watchers, CancelsWhatIsThereAndWhatComesLater) {
  Watchers watchers;
  int first = 0;
  int gone = 0;
  int late = 0;
  const auto place = watchers.add([&] { ++first; });
  watchers.remove(watchers.add([&] { ++gone; }));
  EXPECT_EQ(first, 0);
  watchers.cancel(0);
  watchers.cancel(0);
  EXPECT_EQ(first, 1);
  EXPECT_EQ(gone, 0);
  watchers.add([&] { ++late; });
  EXPECT_EQ(late, 1);
  watchers.remove(place);
}

// A thread may learn of a fault of epoch 0 and call cancel(0) when epoch 1 has already begun. That
// must cancel nothing in epoch 1.
TEST(Watchers, ACancelThatComesLateCancelsNothingOfTheNextEpoch) {
  Watchers watchers;
  watchers.cancel(0);
  watchers.begin_epoch(1);
  int fresh = 0;
  watchers.add([&] { ++fresh; });
  watchers.cancel(0);
  EXPECT_EQ(fresh, 0);
  int later = 0;
  watchers.add([&] { ++later; });
  EXPECT_EQ(later, 0);
  watchers.cancel(1);
  EXPECT_EQ(fresh, 1);
  EXPECT_EQ(later, 1);
}

TEST(Watchers, CallsEachOnce) {
  Watchers watchers;
  int calls = 0;
  watchers.add([&] { ++calls; });
  watchers.cancel(0);
  watchers.begin_epoch(1);
  watchers.cancel(1);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace gpipe::distributed
