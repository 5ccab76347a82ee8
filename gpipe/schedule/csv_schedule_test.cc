#include "gpipe/schedule/csv_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace gpipe {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string workers_of(const std::string& csv) {
  const std::string text = schedule_from_csv(csv).to_text();
  return text.substr(text.find("worker"));
}

TEST(CsvSchedule, ReadsRowsOfRanks) {
  const Schedule schedule = schedule_from_csv("0F0,0F1,0B0,0B1\n1F0,1B0, 1F1 ,1B1\r\n\n");
  EXPECT_EQ(schedule, Schedule::from_text("stages 2\nmicro_batches 2\n"
                                          "worker 0: F0.0 F0.1 B0.0 B0.1\n"
                                          "worker 1: F1.0 B1.0 F1.1 B1.1\n"));
  EXPECT_NO_THROW(schedule.verify(Sends::kBuffered));
}

TEST(CsvSchedule, LeavesOutWhatHappensByItself) {
  EXPECT_EQ(workers_of("0UNSHARD,0F0,0SEND_F0,,0RECV_B0,0B0,0RESHARD,0REDUCE_GRAD\n"
                       "1RECV_F0,1F0,1B0,1SEND_B0"),
            "worker 0: F0.0 B0.0\nworker 1: F1.0 B1.0\n");
}

TEST(CsvSchedule, ReadsHalvesByTheirNamesOfEachYear) {
  EXPECT_EQ(workers_of("0F0,0I0,0W0,0F1,0B1"), "worker 0: F0.0 I0.0 W0.0 F0.1 B0.1\n");
  // Files of 2024 write B for an input gradient and BW for a whole backward. Here stage 0 has
  // halves, and stage 1 has a whole backward.
  EXPECT_EQ(workers_of("0F0,0B0,0W0\n1F0,1BW0"), "worker 0: F0.0 I0.0 W0.0\nworker 1: F1.0 B1.0\n");
}

TEST(CsvSchedule, ReadsOverlapsAsTwoActions) {
  EXPECT_EQ(workers_of("0F0,1F0,(0F1;1B0)OVERLAP_F_B,1F1,(1B1;0B0)OVERLAP_F_B,0B1"),
            "worker 0: F0.0 F1.0 F0.1 B1.0 F1.1 B1.1 B0.0 B0.1\n");
}

TEST(CsvSchedule, KeepsARankWithoutActions) {
  EXPECT_EQ(workers_of(",,\n0F0,0B0"), "worker 0:\nworker 1: F0.0 B0.0\n");
}

TEST(CsvSchedule, RefusesWhatItDoesNotKnow) {
  for (const auto& [csv, part] : {
           std::pair("", "the text has no action"),
           {"\n\n,,\n", "the text has no action"},
           {"0F0,0X0", "row 1, cell 2: '0X0' is not an action"},
           {"0F0\n0F0,,0F", "row 2, cell 3: '0F' is not an action"},
           {"F0", "'F0' is not an action"},
           {"-1F0", "'-1F0' is not an action"},
           {"0F0;", "'0F0;' is not an action"},
           {"0F99999999999999999999", "'0F99999999999999999999' is not an action"},
           {"(0F0;1B0)", "'(0F0;1B0)' is not an action"},
           {"(0F0;)OVERLAP_F_B", "'(0F0;)OVERLAP_F_B' is not an action"},
           {"stages 2", "'stages 2' is not an action"},
           {"0F\x1b", "'0F\\x1b' is not an action"},
           {"2000000000F2000000000", "at most 2^24 cells"},
       }) {
    const std::string given = csv;
    SCOPED_TRACE(given);
    EXPECT_THAT([&] { schedule_from_csv(given); },
                ThrowsMessage<std::invalid_argument>(HasSubstr(part)));
  }
}

// If Schedule::from_text() is given a CSV file, its error message names schedule_from_csv(), which
// reads it.
TEST(CsvSchedule, IsNamedByTheReaderOfTexts) {
  for (const char* csv : {"0F0,0B0", ",1F0", "(0F0;1B0)OVERLAP_F_B"}) {
    EXPECT_THAT([&] { Schedule::from_text(csv); },
                ThrowsMessage<std::invalid_argument>(HasSubstr("schedule_from_csv")));
  }
}

}  // namespace
}  // namespace gpipe
