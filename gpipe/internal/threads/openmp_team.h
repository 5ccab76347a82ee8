// OpenMP team: the threads that libgomp keeps for a thread that has run parallel operators.
#ifndef GPIPE_INTERNAL_THREADS_OPENMP_TEAM_H_
#define GPIPE_INTERNAL_THREADS_OPENMP_TEAM_H_

namespace gpipe::internal {

// Ends the calling thread's team. Its next parallel operator starts a new one, which costs some
// tens of microseconds for each thread.
//
// Threads of a team that wait for work spin, but only as long as all teams of the process together
// have no more threads than there are cores (libgomp: gomp_managed_threads, gomp_available_cpus).
// Otherwise they sleep at the end of each operator, and small operators take several times as long,
// on every thread. So a thread that leaves the cores to others should also release its team.
//
// Does nothing if LibTorch runs on another library than libgomp, in a process that was forked (the
// team is the parent's), and within a parallel operator.
void release_openmp_team() noexcept;

// Releases this thread's team at its end.
class OpenMpTeamRelease {
 public:
  OpenMpTeamRelease() = default;
  ~OpenMpTeamRelease() { release_openmp_team(); }
  OpenMpTeamRelease(const OpenMpTeamRelease&) = delete;
  OpenMpTeamRelease& operator=(const OpenMpTeamRelease&) = delete;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_THREADS_OPENMP_TEAM_H_
