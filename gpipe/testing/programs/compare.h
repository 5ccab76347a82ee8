// run: runs a program in the plain model and in the pipeline, and compares all results that a user
// could see.
#ifndef GPIPE_TESTING_PROGRAMS_COMPARE_H_
#define GPIPE_TESTING_PROGRAMS_COMPARE_H_

#include <cstdint>
#include <string>

#include "gpipe/testing/programs/program.h"
#include "gpipe/world.h"

namespace gpipe::testing::programs {

struct Outcome {
  enum Kind {
    kEqual,  // all results are equal bit by bit
    // Equal up to the order of sums, because one tensor takes several routes.
    kEqualButSums,
    // Bit by bit equal to a plain model that copies tensors where the pipeline goes to another
    // device. With the copies tensors have the same strides and the same alignment in both, and if
    // code writes into its gradient, the tensor's other routes do not see it
    // (docs/guide/17-same-training.md).
    kEqualButCopies,
    kInvalid,  // the plain model throws
    kRefused,  // the pipeline throws what it documents, see compare.cc
    // On a GPU: the results differ, but so do those of two runs of the plain model.
    kUnrepeatable,
    kDifferent,
    kThrows,  // the pipeline throws something that is not documented
  };
  Kind kind = kEqual;
  std::string what;      // what differs first, or the message
  std::string category;  // equal for failures of the same kind
  int64_t replayed = 0;  // the number of graphs that were replayed

  bool failed() const { return kind == kDifferent || kind == kThrows; }
};

// Both run on the test program's devices (gpipe/testing/device.h): the plain model on the first
// one, the pipeline on all of them, or over processes on one device per process.
//
// If the pipeline hangs, the process ends with the program's text.
//
// Over several processes all of them call this with the same program. Each runs the plain model and
// compares the part of the pipeline that it has. Requires can_run(program, world).
Outcome run(const Program& program, const World& world = World());

// Whether the program has a stage for each process, and an entry that works over processes.
bool can_run(const Program& program, const World& world);

}  // namespace gpipe::testing::programs

#endif  // GPIPE_TESTING_PROGRAMS_COMPARE_H_
