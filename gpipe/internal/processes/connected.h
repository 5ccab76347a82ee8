// Whether this process is connected to others, for a pipeline that is made without them.
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

// True at the first call in which the process is connected, then never again: for one warning.
// Thread-safe.
bool first_alone_while_connected();

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_PROCESSES_CONNECTED_H_
