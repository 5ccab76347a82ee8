// Private descriptors: files that a child of fork() does not keep open.
//
// The other end of a connection sees it end when the last process that has it open closes it. A
// child that is forked without exec would keep it open, so the end of its parent would go
// unnoticed. Closing at exec (FD_CLOEXEC) does not help there.
#ifndef GPIPE_DISTRIBUTED_SOCKETS_PRIVATE_DESCRIPTORS_H_
#define GPIPE_DISTRIBUTED_SOCKETS_PRIVATE_DESCRIPTORS_H_

namespace gpipe::distributed {

// Thread-safe. If another thread calls fork(), the child has a new descriptor either as a private
// one or not at all.
//
// Guarantees: in a child of fork() each private descriptor's file is closed. Its number stays in
// use and leads to /dev/null, so objects that own it may be destroyed there. This does not hold in
// children of clone(), vfork() or _Fork(), which run no handlers. Descriptors from 65536 on stay as
// they are.

// Calls `open`, which calls a system function that does not block (accept4, socket), and makes the
// descriptor private. Returns what `open` returns, with its errno.
template <typename Open>
int open_private(Open open);
void make_private(int descriptor);
// The descriptor stays open, also in children.
void make_public(int descriptor);
// Closes a descriptor, whether it is private or not.
void close_private(int descriptor);

// --- Implementation.

// While it lives, fork() on other threads waits.
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
