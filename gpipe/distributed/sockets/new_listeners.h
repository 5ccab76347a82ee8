// NewListeners: the listening sockets of a library that gives no way to them, and how it stops to
// accept.
#ifndef GPIPE_DISTRIBUTED_SOCKETS_NEW_LISTENERS_H_
#define GPIPE_DISTRIBUTED_SOCKETS_NEW_LISTENERS_H_

#include <cstdint>
#include <set>
#include <vector>

namespace gpipe::distributed {

// Gloo accepts whoever connects as long as its group lives, and keeps a file for each. With no file
// left, its thread throws and the process ends. Once a group is connected, nobody else is expected.
class NewListeners {
 public:
  // Remembers which descriptors are open.
  NewListeners();

  // Finds the sockets that have been opened since then, listen, and are waited for by an epoll that
  // was opened since then, too: another thread's server would have to open both meanwhile.
  // Without /proc it finds none.
  void find();

  // Nobody is woken any more by who connects, so nobody accepts; the kernel holds one or two who
  // wait, and gives no answer to others. Connections that are there stay. The library may still
  // take its sockets out of its epoll. Requirement: what find() found is still open.
  void ignore_all() const;

  // The sockets, ascending.
  std::vector<int> found() const;

 private:
  struct Waited {
    int epoll;
    int listener;
    uint64_t data;  // by which the epoll's owner knows the listener
  };

  std::set<int> before_;
  std::vector<Waited> found_;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_SOCKETS_NEW_LISTENERS_H_
