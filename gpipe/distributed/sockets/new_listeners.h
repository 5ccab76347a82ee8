// NewListeners: finds the listening sockets of a library that does not expose them, and makes it
// stop accepting connections.
#ifndef GPIPE_DISTRIBUTED_SOCKETS_NEW_LISTENERS_H_
#define GPIPE_DISTRIBUTED_SOCKETS_NEW_LISTENERS_H_

#include <cstdint>
#include <set>
#include <vector>

namespace gpipe::distributed {

// Gloo accepts every connection as long as its group lives, and keeps a descriptor for each. When
// no descriptor is left, its thread throws and the process ends. Once a group is connected, no
// further connections are expected.
class NewListeners {
 public:
  // Remembers which descriptors are open.
  NewListeners();

  // Finds the listening sockets that were opened since the constructor and that an epoll waits for
  // which was also opened since. So another thread's server is found only if it opens both
  // meanwhile. Without /proc this finds none.
  void find();

  // From now on a new connection wakes no thread, so none is accepted. The kernel holds one or two
  // connections that wait, and does not answer others. Existing connections stay. The library may
  // still remove its sockets from its epoll. Requirement: what find() found is still open.
  void ignore_all() const;

  // The sockets, ascending.
  std::vector<int> found() const;

 private:
  struct Waited {
    int epoll;
    int listener;
    uint64_t data;  // the value by which the epoll's owner identifies the listener
  };

  std::set<int> before_;
  std::vector<Waited> found_;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_SOCKETS_NEW_LISTENERS_H_
