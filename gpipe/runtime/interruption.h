// Interruption: asks the program around a pipeline whether a run is to end early.
//
// A program that is not in C++ has no other moment for that: Python sees Ctrl-C only on the thread
// that waits here for the workers.
#ifndef GPIPE_RUNTIME_INTERRUPTION_H_
#define GPIPE_RUNTIME_INTERRUPTION_H_

#include <chrono>

namespace gpipe::internal {

// Called on the thread that has started a run, some times per second while workers run, and before
// each action that this thread runs itself. What it throws ends the run, whose caller gets it; an
// action that has begun is finished first.
using InterruptionCheck = void (*)();

// How often a waiting caller asks.
constexpr std::chrono::milliseconds kInterruptionPeriod{50};

// Sets the check of the whole process; null, the default: none.
//
// Thread-safety: both are thread-safe. A run that has begun may still use the former check.
void set_interruption_check(InterruptionCheck check);
InterruptionCheck interruption_check();

}  // namespace gpipe::internal

#endif  // GPIPE_RUNTIME_INTERRUPTION_H_
