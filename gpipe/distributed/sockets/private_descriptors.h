// Private descriptors: files that a child of fork() does not keep open.
//
// A connection ends for its other end when the last process that has it closes it. A child that is
// forked without exec would keep it: the end of its parent would be seen by nobody. Closing at exec
// (FD_CLOEXEC) does not help there.
#ifndef GPIPE_DISTRIBUTED_SOCKETS_PRIVATE_DESCRIPTORS_H_
#define GPIPE_DISTRIBUTED_SOCKETS_PRIVATE_DESCRIPTORS_H_

namespace gpipe::distributed {

// Thread-safe; also a fork() on another thread meets an opened descriptor either private or not at
// all.
//
// Guarantees: in a child of fork() each private descriptor is a closed one in all but its number,
// which nobody else gets: it leads to /dev/null. So objects that own one may be destroyed there.
// Not in children of clone(), vfork() or _Fork(), which run no handlers. Descriptors from 65536 on
// stay as they are.

// A private descriptor from `open`, a function of the system that does not block: accept4, socket.
// What that returns, with its errno.
template <typename Open>
int open_private(Open open);
void make_private(int descriptor);
// It stays open, and is as any other.
void make_public(int descriptor);
// Of one that is private or not.
void close_private(int descriptor);

// --- Implementation.

// Holds back forks.
class PrivateDescriptorsLock {
 public:
  PrivateDescriptorsLock();
  ~PrivateDescriptorsLock();
  PrivateDescriptorsLock(const PrivateDescriptorsLock&) = delete;
  PrivateDescriptorsLock& operator=(const PrivateDescriptorsLock&) = delete;

  void add(int descriptor);
  void remove(int descriptor);
};

template <typename Open>
int open_private(Open open) {
  PrivateDescriptorsLock lock;
  const int descriptor = open();
  if (descriptor >= 0) lock.add(descriptor);
  return descriptor;
}

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_SOCKETS_PRIVATE_DESCRIPTORS_H_
