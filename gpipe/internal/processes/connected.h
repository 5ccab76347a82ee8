// Connected: whether this process is connected to others, for a pipeline that is made without the
// other processes.
#ifndef GPIPE_INTERNAL_PROCESSES_CONNECTED_H_
#define GPIPE_INTERNAL_PROCESSES_CONNECTED_H_

namespace gpipe::internal {

// A connection to other processes, from its making to its end.
class Connected {
 public:
  Connected();
  ~Connected();
  Connected(const Connected&) = delete;
  Connected& operator=(const Connected&) = delete;
};

// Returns true in the first call while this process is connected, and never again, so that a
// warning is given once. Thread-safe.
bool first_alone_while_connected();

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_PROCESSES_CONNECTED_H_
