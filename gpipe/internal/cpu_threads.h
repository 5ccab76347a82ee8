// Sharing out the cores among the stages that run on the CPU.
#ifndef GPIPE_INTERNAL_CPU_THREADS_H_
#define GPIPE_INTERNAL_CPU_THREADS_H_

#include <cstdint>

namespace gpipe::internal {

// The intra-op threads of each of `cpu_stages` stages: `wanted` if positive, else an equal share of
// this thread's, at least one.
int64_t share_of_cpu_threads(int64_t wanted, int64_t cpu_stages);

// Sets the number of intra-op threads of the calling thread alone. at::set_num_threads also sets
// what threads started later begin with: see DefaultThreadsScope.
void set_threads_of_this_thread(int64_t threads);

// Lives where threads are started that call set_threads_of_this_thread(): those started later begin
// with this thread's number. That is also set before: after fork() LibTorch makes its thread pool
// anew at the first number set, and not under a lock; two threads at once would leave it without
// one ("Invalid thread pool").
class DefaultThreadsScope {
 public:
  DefaultThreadsScope();
  ~DefaultThreadsScope();
  DefaultThreadsScope(const DefaultThreadsScope&) = delete;
  DefaultThreadsScope& operator=(const DefaultThreadsScope&) = delete;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CPU_THREADS_H_
