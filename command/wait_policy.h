// start_with_sleeping_threads: lets OpenMP's waiting threads sleep instead of spin.
#ifndef GPIPE_COMMAND_WAIT_POLICY_H_
#define GPIPE_COMMAND_WAIT_POLICY_H_

namespace gpipe::command {

// LibTorch's OpenMP threads spin while they wait for each other. A spinning thread keeps a core
// from the thread that it waits for, if the machine has any other work. A plain network then runs
// at a sixth of its speed. A pipeline, whose stages have a thread each, does not slow down, which
// looks like a speed-up.
//
// OMP_WAIT_POLICY=passive lets the threads sleep. GOMP_SPINCOUNT=1000 lets them spin before for
// about the time that a thread takes to wake up (docs/design/experiments.md). OpenMP's library
// reads both when it is loaded, before main. So this function sets them and starts the process's
// program again (exec), with the same arguments, process id, files and signals.
//
// Call it first in main, with main's arguments. It does nothing if the user has set OMP_WAIT_POLICY
// or GOMP_SPINCOUNT, under a debugger, if `argv` are not this process's arguments (as in a test),
// and if the program cannot be started again.
void start_with_sleeping_threads(int argc, const char* const* argv);

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_WAIT_POLICY_H_
