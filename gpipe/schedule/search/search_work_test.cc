#include "gpipe/schedule/search/search_work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace gpipe::internal {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(SearchWork, IsThatOfTheGenerator) {
  for (const char* name : {"gpipe", "fill-drain", "1f1b", "sequential", "interleaved", "looped-bfs",
                           "zb-h1", "zb-interleaved"}) {
    EXPECT_EQ(search_work(name, 8, 4), 0) << name;
  }
  for (const char* name : {"zb-h2", "zb-v", "v-half", "v-min", "dualpipe-v"}) {
    EXPECT_GT(search_work(name, 8, 3), 10'000'000) << name;
    EXPECT_GT(search_work(name, 16, 3), search_work(name, 8, 3)) << name;
  }
  EXPECT_EQ(search_work("dualpipe-v", 8, 8), 0);  // two micro-batches per worker: follows rules
  EXPECT_EQ(search_work("dualpipe-v", 8, 7), 2 * search_work("zb-v", 8, 8));  // it searches twice
  EXPECT_EQ(search_work("zb-v", 8, 8), search_work("zb-h2", 4, 8));           // both have 4 workers
}

TEST(SearchWork, RefusesWhatHasNoSchedule) {
  const auto refuses = [](const char* text) {
    return ThrowsMessage<std::invalid_argument>(HasSubstr(text));
  };
  EXPECT_THAT([] { search_work("zb_v", 8, 4); }, refuses("did you mean zb-v?"));
  EXPECT_THAT([] { search_work("zb-v", 7, 4); }, refuses("got 7 stages"));
  EXPECT_THAT([] { search_work("zb-v", 8, 0); }, refuses("at least 1 micro-batch, got 0"));
}

}  // namespace
}  // namespace gpipe::internal
