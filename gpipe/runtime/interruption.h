// Interruption: lets the program around a pipeline end a run early.
//
// A program that is not in C++ cannot interrupt a run in another way: Python handles Ctrl-C only on
// the thread that waits here for the workers.
#ifndef GPIPE_RUNTIME_INTERRUPTION_H_
#define GPIPE_RUNTIME_INTERRUPTION_H_

#include <chrono>

namespace gpipe::internal {

// A function that is called on the thread that has started a run, some times per second while
// workers run, and before each action that this thread runs itself. If it throws, the run ends, and
// the run's caller gets the exception. An action that has begun is finished first.
using InterruptionCheck = void (*)();

// How often the thread that waits for the workers calls the check.
constexpr std::chrono::milliseconds kInterruptionPeriod{50};

// Sets the check of the whole process. Null, the default, means that there is none.
//
// Thread-safety: both functions are thread-safe. A run that has begun may still use the former
// check.
void set_interruption_check(InterruptionCheck check);
InterruptionCheck interruption_check();

}  // namespace gpipe::internal

#endif  // GPIPE_RUNTIME_INTERRUPTION_H_
