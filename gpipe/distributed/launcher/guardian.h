// Guardian: ends process groups if the process that has started them is killed.
#ifndef GPIPE_DISTRIBUTED_LAUNCHER_GUARDIAN_H_
#define GPIPE_DISTRIBUTED_LAUNCHER_GUARDIAN_H_

#include <sys/types.h>

namespace gpipe::distributed {

// The system ends children with their parent (PR_SET_PDEATHSIG), but not the children's children: a
// script's program would run forever. So a separate process, the guardian, waits until this one
// ends for whatever reason, and then kills all groups that it was told of. It notices the end by a
// pipe, whose other end the system closes.
//
// Requirements: created before any thread; SIGPIPE is ignored.
//
// Guarantees: after the destructor there is no guardian, and no process in a group that was watched
// until then.
//
// Throws: std::runtime_error if it cannot be started.
class Guardian {
 public:
  Guardian();
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  void watch(pid_t group);
  // Must be called before the system can reuse the group's number: while the group has members, or
  // right after.
  void forget(pid_t group);

  pid_t pid() const { return pid_; }

 private:
  void tell(pid_t group) const;

  pid_t pid_ = -1;
  int pipe_ = -1;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_LAUNCHER_GUARDIAN_H_
