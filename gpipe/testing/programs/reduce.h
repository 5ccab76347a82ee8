// reduce: makes a failing program small.
#ifndef GPIPE_TESTING_PROGRAMS_REDUCE_H_
#define GPIPE_TESTING_PROGRAMS_REDUCE_H_

#include "gpipe/testing/programs/compare.h"
#include "gpipe/testing/programs/program.h"

namespace gpipe::testing::programs {

struct Reduced {
  Program program;
  Outcome outcome;
};

// Leaves out layers, stages, micro-batches, calls and options as long as the program still fails in
// the same way. A failure that depends on timing is tried several times.
Reduced reduce(Program program, Outcome outcome);

}  // namespace gpipe::testing::programs

#endif  // GPIPE_TESTING_PROGRAMS_REDUCE_H_
