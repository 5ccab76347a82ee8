// OwnState: the state of this process that it changes while it launches others.
#ifndef GPIPE_DISTRIBUTED_LAUNCHER_OWN_STATE_H_
#define GPIPE_DISTRIBUTED_LAUNCHER_OWN_STATE_H_

#include "gpipe/distributed/launcher/child_process.h"

namespace gpipe::distributed {

// Changes signals, the limit of open files and the adoption of orphans, and remembers what the
// launcher's children get back (ParentState).
class OwnState {
 public:
  OwnState();
  ~OwnState();
  OwnState(const OwnState&) = delete;
  OwnState& operator=(const OwnState&) = delete;

  // The descriptor from which signals are read: signalfd(2).
  int signals() const { return signals_; }
  const ParentState& parent() const { return parent_; }

 private:
  ParentState parent_ = {};
  int signals_ = -1;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_LAUNCHER_OWN_STATE_H_
