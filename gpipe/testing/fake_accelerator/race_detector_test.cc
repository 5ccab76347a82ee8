#include "gpipe/testing/fake_accelerator/race_detector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace gpipe::testing::fake {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A detector, and streams with clocks as Runtime has them.
class RaceDetectorTest : public ::testing::Test {
 protected:
  RaceDetectorTest() { detector_.add_block(memory_, sizeof(memory_), "block of fake:0/0"); }

  void access(int stream, bool write, const Footprint& where) {
    const uint64_t time = clocks_[stream].of(stream) + 1;
    clocks_[stream].see(stream, time);
    const std::string what =
        "task " + std::to_string(time) + " on stream " + std::to_string(stream);
    detector_.access({what, stream, time}, clocks_[stream], {where, write});
  }
  void write(int stream, size_t begin = 0, size_t end = 64) {
    access(stream, true, Footprint(memory_ + begin, end - begin));
  }
  void read(int stream, size_t begin = 0, size_t end = 64) {
    access(stream, false, Footprint(memory_ + begin, end - begin));
  }
  // Work that is enqueued on `stream` from now on comes after all work that is enqueued on
  // `awaited` so far.
  void wait(int stream, int awaited) { clocks_[stream].join(clocks_[awaited]); }

  char memory_[256] = {};
  RaceDetector detector_;
  VectorClock clocks_[4];
};

TEST_F(RaceDetectorTest, OneStreamIsInOrder) {
  write(0), read(0), write(0), write(0);
  EXPECT_THAT(detector_.take_races(), IsEmpty());
}

TEST_F(RaceDetectorTest, AReadAfterAWriteNeedsAWait) {
  write(0, 0, 64);
  read(1, 32, 96);
  EXPECT_THAT(
      detector_.take_races(),
      ElementsAre("task 1 on stream 1, reads bytes [32, 96) of a block of fake:0/0; nothing "
                  "orders it after task 1 on stream 0, which writes bytes [0, 64)"));
  wait(2, 0);
  read(2);
  EXPECT_THAT(detector_.take_races(), IsEmpty());
}

TEST_F(RaceDetectorTest, AWriteAfterAReadNeedsAWait) {
  read(0);
  write(1);
  EXPECT_THAT(detector_.take_races(), ElementsAre(AllOf(HasSubstr("stream 1, writes"),
                                                        HasSubstr("stream 0, which reads"))));
}

TEST_F(RaceDetectorTest, AWriteAfterAReadIsFineWithAWait) {
  read(0);
  wait(1, 0);
  write(1);
  EXPECT_THAT(detector_.take_races(), IsEmpty());
}

TEST_F(RaceDetectorTest, AWriteAfterAWriteNeedsAWait) {
  write(0);
  write(1);
  EXPECT_THAT(detector_.take_races(), SizeIs(1));
}

TEST_F(RaceDetectorTest, ReadsNeedNone) {
  read(0), read(1), read(2);
  EXPECT_THAT(detector_.take_races(), IsEmpty());
}

TEST_F(RaceDetectorTest, AWaitForAnEarlierTaskIsNotOneForALaterTask) {
  read(0);
  wait(1, 0);
  write(0);
  read(1);
  EXPECT_THAT(detector_.take_races(), SizeIs(1));
}

TEST_F(RaceDetectorTest, WaitsAreTransitive) {
  write(0);
  wait(1, 0);
  read(1);
  wait(2, 1);
  write(2);
  EXPECT_THAT(detector_.take_races(), IsEmpty());
}

TEST_F(RaceDetectorTest, EachReaderMustBeWaitedFor) {
  write(0);
  wait(1, 0), wait(2, 0);
  read(1), read(2);
  wait(3, 1);
  write(3);
  EXPECT_THAT(detector_.take_races(), ElementsAre(HasSubstr("stream 2, which reads")));
}

TEST_F(RaceDetectorTest, TheFirstWriterIsSeenBehindALaterReader) {
  write(0);
  wait(1, 0);
  read(1);
  read(2);
  EXPECT_THAT(detector_.take_races(), ElementsAre(HasSubstr("stream 0, which writes")));
}

TEST_F(RaceDetectorTest, TheRestOfAWriteIsSeenBehindALaterPart) {
  write(0, 0, 64);
  wait(1, 0);
  write(1, 0, 32);
  wait(2, 1);
  read(2, 0, 64);
  EXPECT_THAT(detector_.take_races(), IsEmpty());
  read(3, 32, 64);
  EXPECT_THAT(detector_.take_races(), ElementsAre(HasSubstr("task 1 on stream 0")));
}

TEST_F(RaceDetectorTest, OtherBytesAreNotAConflict) {
  write(0, 0, 64);
  write(1, 64, 128);
  EXPECT_THAT(detector_.take_races(), IsEmpty());
}

TEST_F(RaceDetectorTest, ColumnsOfOneMatrixAreNotAConflict) {
  access(0, true, Footprint(memory_, 4, {4, 2}, {4, 1}));
  access(1, true, Footprint(memory_ + 8, 4, {4, 2}, {4, 1}));
  EXPECT_THAT(detector_.take_races(), IsEmpty());
  access(2, true, Footprint(memory_ + 4, 4, {4, 2}, {4, 1}));
  EXPECT_THAT(detector_.take_races(), SizeIs(2));
}

TEST_F(RaceDetectorTest, AColumnDoesNotHideWhatLiesBesideIt) {
  write(0, 4, 8);
  wait(1, 0);
  access(1, true, Footprint(memory_, 4, {4}, {4}));
  read(2, 4, 8);
  EXPECT_THAT(detector_.take_races(), ElementsAre(HasSubstr("stream 0")));
}

TEST_F(RaceDetectorTest, TheHostMustHaveSeenWhatItTouches) {
  read(0);
  detector_.host_access("the host", VectorClock(), {Footprint(memory_, 8), false});
  EXPECT_THAT(detector_.take_races(), IsEmpty()) << "two reads";
  detector_.host_access("the host", VectorClock(), {Footprint(memory_, 8), true});
  EXPECT_THAT(detector_.take_races(), ElementsAre(HasSubstr("the host, writes")));
  detector_.host_access("the host", clocks_[0], {Footprint(memory_, 8), true});
  EXPECT_THAT(detector_.take_races(), IsEmpty());
}

TEST_F(RaceDetectorTest, ForgetsWhatTheClockHasSeenAndNothingElse) {
  write(0);
  const VectorClock seen = clocks_[0];
  write(1, 100, 164);
  detector_.forget(memory_, seen);
  read(2);
  EXPECT_THAT(detector_.take_races(), IsEmpty());
  read(2, 100, 164);
  EXPECT_THAT(detector_.take_races(), SizeIs(1));
}

TEST_F(RaceDetectorTest, OnlyBlocksAreWatched) {
  char elsewhere[64] = {};
  access(0, true, Footprint(elsewhere, 64));
  access(1, true, Footprint(elsewhere, 64));
  EXPECT_THAT(detector_.take_races(), IsEmpty());
  write(0);
  detector_.remove_block(memory_);
  detector_.remove_block(elsewhere);
  write(1);
  EXPECT_THAT(detector_.take_races(), IsEmpty());
}

TEST_F(RaceDetectorTest, TellsEqualRacesOnceAndAtMostAHundred) {
  for (int i = 0; i < 300; ++i) {
    detector_.access({"writer", 0, 1}, VectorClock(), {Footprint(memory_, 8), true});
    detector_.access({"reader", 1, 1}, VectorClock(), {Footprint(memory_, 8), false});
    detector_.forget(memory_, [] {
      VectorClock all;
      all.see(0, 1), all.see(1, 1);
      return all;
    }());
  }
  EXPECT_THAT(detector_.take_races(), ElementsAre(HasSubstr("(300 times)")));
  for (int i = 0; i < 300; ++i) write(i % 2);
  EXPECT_THAT(detector_.take_races(), SizeIs(100));
  EXPECT_THAT(detector_.take_races(), IsEmpty());
}

}  // namespace
}  // namespace gpipe::testing::fake
