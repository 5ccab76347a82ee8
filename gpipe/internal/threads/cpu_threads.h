// CPU threads: how the cores are shared among the workers that have stages on the CPU.
#ifndef GPIPE_INTERNAL_THREADS_CPU_THREADS_H_
#define GPIPE_INTERNAL_THREADS_CPU_THREADS_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/placement.h"

namespace gpipe::internal {

// How many of these workers have a stage on the CPU. `devices`: [stage].
int64_t workers_on_cpu(const Placement& placement, const std::vector<int32_t>& workers,
                       const std::vector<c10::Device>& devices);

// The number of intra-op threads that the workers share, unless the user gives another number. It
// is this thread's number. If this thread has LibTorch's default, the result is at most a
// container's CPU quota, which LibTorch ignores.
int64_t default_cpu_threads();
// default_cpu_threads(), computed from given numbers. `now`: this thread's number. `at_start`: this
// thread's number before any code could change it. `is_chosen`: whether the environment sets the
// number (OMP_NUM_THREADS, MKL_NUM_THREADS).
int64_t default_cpu_threads(int64_t now, int64_t at_start, bool is_chosen,
                            std::optional<double> quota);
// A warning if default_cpu_threads() is less than this thread's number, otherwise an empty text.
std::string fewer_threads_text();

// The number of intra-op threads for each of `cpu_workers` workers. It is `wanted` if that is
// positive, otherwise an equal share of default_cpu_threads(), at least one.
int64_t share_of_cpu_threads(int64_t wanted, int64_t cpu_workers);

// Sets the number of intra-op threads of the calling thread only. However, at::set_num_threads also
// changes the initial number of threads started later: see DefaultThreadsScope.
void set_threads_of_this_thread(int64_t threads);

// Open this scope while starting threads that call set_threads_of_this_thread(). Threads started
// after the scope then begin with this thread's number.
//
// The scope also sets this thread's number when it opens. After fork(), LibTorch makes its thread
// pool anew when a number is first set, and does so without a lock. Two threads at once would leave
// it without a pool ("Invalid thread pool").
class DefaultThreadsScope {
 public:
  DefaultThreadsScope();
  ~DefaultThreadsScope();
  DefaultThreadsScope(const DefaultThreadsScope&) = delete;
  DefaultThreadsScope& operator=(const DefaultThreadsScope&) = delete;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_THREADS_CPU_THREADS_H_
