// RaceDetector: finds accesses of streams to the same memory that nothing orders.
//
// It uses the enqueued accesses and vector clocks, never the time at which something runs. So a
// missing wait is reported in each run, also in a run in which it did no harm. It knows neither
// threads nor LibTorch; Runtime tells it of accesses.
#ifndef GPIPE_TESTING_FAKE_ACCELERATOR_RACE_DETECTOR_H_
#define GPIPE_TESTING_FAKE_ACCELERATOR_RACE_DETECTOR_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gpipe/testing/fake_accelerator/footprint.h"
#include "gpipe/testing/fake_accelerator/vector_clock.h"

namespace gpipe::testing::fake {

struct Access {
  Footprint where;
  bool write = false;
};

// A task as the detector sees it.
struct Actor {
  std::string what;   // "aten::add on fake:1/0, launched by thread 2"; for reports
  int stream = 0;     // the stream's component of the clock
  uint64_t time = 0;  // the task's number on that stream, from 1
};

// Guarantees: an access is reported if and only if an earlier access touches the same byte of the
// same block, `clock` has not seen the task of that earlier access, and one of the two accesses
// writes. There is one exception. If a later access covers an earlier one and comes after it, only
// the later one is compared, so of two equal reports one is left out.
//
// Thread-safety: one call at a time.
//
// Example:
//   RaceDetector detector;
//   detector.add_block(memory, 1024, "block of fake:0/0");
//   detector.access({"write", 0, 1}, clock_of_0, {Footprint(memory, 64), true});
//   detector.access({"read", 1, 1}, clock_of_1, {Footprint(memory, 64), false});
//   detector.take_races();  // one, unless clock_of_1 has seen time 1 of stream 0
class RaceDetector {
 public:
  // Watches this memory. Memory outside of all blocks is not watched. Requirements: it overlaps no
  // other block.
  void add_block(const void* begin, size_t bytes, std::string name);
  // Ends the watching of a block. Has no effect if no block begins there.
  void remove_block(const void* begin);

  // `actor` accesses memory, after everything that `clock` has seen. Calls come in the order in
  // which the tasks of each stream are enqueued.
  void access(const Actor& actor, const VectorClock& clock, const Access& access);
  // The host accesses memory at once, after everything that `clock` has seen. It need not be
  // remembered, because what is enqueued later comes after it.
  void host_access(const std::string& what, const VectorClock& clock, const Access& access);
  // Forgets the accesses to the block that `clock` has seen: work after `clock` may use the block
  // again without a wait.
  void forget(const void* block, const VectorClock& clock);

  // The races found since the last call. Equal races are listed once, with their number. There are
  // at most 100 texts.
  std::vector<std::string> take_races();

 private:
  struct Past {
    Actor actor;
    Access access;
  };
  struct Block {
    const char* begin;
    const char* end;
    std::string name;
    std::vector<Past> past;
  };

  Block* find(const char* address);
  void report(const std::string& what, const Access& access, const Past& past, const Block& block);

  std::map<const char*, Block> blocks_;  // by the addresses at which they begin
  std::map<std::string, int64_t> races_;
};

}  // namespace gpipe::testing::fake

#endif  // GPIPE_TESTING_FAKE_ACCELERATOR_RACE_DETECTOR_H_
