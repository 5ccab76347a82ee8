#include "gpipe/world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <typeinfo>

#include "tools/testing/wrong_input.h"

namespace gpipe {
namespace {

using Row = testing::WrongInput<>;
class WrongInputTest : public ::testing::TestWithParam<Row> {};
TEST_P(WrongInputTest, IsRefused) { testing::expect_refused(GetParam()); }

World four() { return World(nullptr, 0, 4); }

World rank_of(int64_t rank, int64_t replicas, int64_t processes) {
  return World(nullptr, rank, replicas * processes).grid(replicas, processes);
}

TEST(World, AGridNumbersTheProcessesOfEachReplica) {
  EXPECT_EQ(World().replicas(), 1);
  EXPECT_EQ(World().processes_each(), 1);
  const World world = rank_of(5, 2, 3);
  EXPECT_EQ(world.replicas(), 2);
  EXPECT_EQ(world.processes_each(), 3);
  EXPECT_EQ(world.replica(), 1);
  EXPECT_EQ(world.process(), 2);
  EXPECT_EQ(world.rank(), 5);
  EXPECT_EQ(world.size(), 6);
}

TEST(World, LocalRank) {
  EXPECT_EQ(World().local_rank(), 0);
  EXPECT_EQ(World(nullptr, 5, 6).local_rank(), 0);
  EXPECT_EQ(World(nullptr, 5, 6, 1).local_rank(), 1);
  EXPECT_EQ(World(nullptr, 5, 6, 1).grid(2, 3).local_rank(), 1);
}

// Each micro-batch has ceil(rows / chunks) rows, and a replica has the rows of its chunks.
TEST(World, RowsAreThoseOfTheReplicasChunks) {
  for (const int64_t replicas : {1, 2, 3, 4}) {
    for (const int64_t each : {1, 2, 3}) {
      const int64_t chunks = replicas * each;
      for (int64_t rows = 0; rows <= 40; ++rows) {
        const int64_t size = (rows + chunks - 1) / chunks;
        int64_t end = 0;
        for (int64_t replica = 0; replica < replicas; ++replica) {
          const RowRange range = rank_of(replica, replicas, 1).rows(rows, chunks);
          EXPECT_EQ(range.begin, std::min(rows, replica * each * size)) << rows << " " << chunks;
          EXPECT_EQ(range.begin, end);
          end = range.end;
        }
        EXPECT_EQ(end, rows);
      }
    }
  }
  EXPECT_EQ(rank_of(1, 2, 1).rows(INT64_MAX, 2), (RowRange{INT64_MAX / 2 + 1, INT64_MAX}));
  EXPECT_EQ(rank_of(1, 2, 1).rows(3, INT64_MAX - 1), (RowRange{3, 3}));
}

INSTANTIATE_TEST_SUITE_P(
    World, WrongInputTest,
    ::testing::Values(Row{"no_multiple",
                          [] { (void)four().grid(3, 1); },
                          typeid(std::invalid_argument),
                          {"grid(3, 1)", "there are 4 processes", "start as many"}},
                      Row{"no_replicas",
                          [] { (void)four().grid(0, 4); },
                          typeid(std::invalid_argument),
                          {"grid(0, 4)"}},
                      Row{"negative",
                          [] { (void)four().grid(-2, -2); },
                          typeid(std::invalid_argument),
                          {"grid(-2, -2)"}},
                      Row{"many",
                          [] { (void)four().grid(INT64_MAX, INT64_MAX); },
                          typeid(std::invalid_argument),
                          {"4 processes"}},
                      Row{"alone",
                          [] { (void)World().grid(2, 1); },
                          typeid(std::invalid_argument),
                          {"2 replicas of 1 process each, and there is 1 process in all",
                           "no launcher has started several"}},
                      Row{"chunks",
                          [] { (void)four().grid(2, 2).rows(8, 3); },
                          typeid(std::invalid_argument),
                          {"3 chunks", "2 replicas", "multiple"}},
                      Row{"rows",
                          [] { (void)four().rows(-1, 3); },
                          typeid(std::invalid_argument),
                          {"rows(-1, 3)"}},
                      Row{"no_chunks",
                          [] { (void)four().rows(1, 0); },
                          typeid(std::invalid_argument),
                          {"rows(1, 0)"}}),
    testing::row_name);

}  // namespace
}  // namespace gpipe
