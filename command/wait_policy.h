// start_with_sleeping_threads: OpenMP's threads that wait soon do so asleep.
#ifndef GPIPE_COMMAND_WAIT_POLICY_H_
#define GPIPE_COMMAND_WAIT_POLICY_H_

namespace gpipe::command {

// LibTorch's OpenMP threads spin while they wait for each other. Beside any other work, a spinning
// thread holds the core that the one it waits for needs: a plain network then runs at a sixth of
// its speed and a pipeline, whose stages have a thread each, does not, which looks like a speed-up.
// OMP_WAIT_POLICY=passive lets them sleep, and GOMP_SPINCOUNT=1000 spin for about as long before as
// a thread takes to wake up (docs/design/experiments.md). OpenMP's library reads them while it is
// loaded, which is before main: so this sets them and starts the process's program once more
// (exec), with the same arguments, process id, files and signals.
//
// To be called first in main, with its arguments. Does nothing if OMP_WAIT_POLICY or GOMP_SPINCOUNT
// is set, which is the user's choice, under a debugger, and if `argv` are not the arguments of this
// process (a test's); and goes on as it is where the program cannot be started again.
void start_with_sleeping_threads(int argc, const char* const* argv);

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_WAIT_POLICY_H_
