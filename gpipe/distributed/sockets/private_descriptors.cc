#include "gpipe/distributed/sockets/private_descriptors.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <mutex>

namespace gpipe::distributed {
namespace {

constexpr int kMost = 65536;

// No code may allocate memory while it holds this lock, because fork() takes this lock and perhaps
// the allocator's lock, too.
std::mutex mutex;
uint64_t is_private[kMost / 64];

uint64_t& word_of(int descriptor) { return is_private[static_cast<std::size_t>(descriptor) / 64]; }
uint64_t bit_of(int descriptor) { return uint64_t{1} << (static_cast<unsigned>(descriptor) % 64); }

void before_fork() { mutex.lock(); }
void after_fork_in_parent() { mutex.unlock(); }
// Calls only functions that are allowed between fork and exec in a process with threads.
void after_fork_in_child() {
  int null = -1;
  for (int descriptor = 0; descriptor < kMost; ++descriptor) {
    if (word_of(descriptor) == 0) {
      descriptor |= 63;
      continue;
    }
    if ((word_of(descriptor) & bit_of(descriptor)) == 0) continue;
    if (null < 0) null = open("/dev/null", O_RDWR | O_CLOEXEC);
    // If /dev/null cannot be opened, the descriptor is closed and its number becomes free.
    if (null < 0 || dup3(null, descriptor, O_CLOEXEC) < 0) close(descriptor);
  }
  if (null >= 0) close(null);
  for (uint64_t& word : is_private) word = 0;
  mutex.unlock();
}

}  // namespace

PrivateDescriptorsLock::PrivateDescriptorsLock() {
  // The handlers are registered here and not by a static initializer, because a process without
  // private descriptors needs none.
  static const int registered =
      pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  (void)registered;  // registering fails only if memory runs out; then there are no handlers
  mutex.lock();
}
PrivateDescriptorsLock::~PrivateDescriptorsLock() { mutex.unlock(); }

void PrivateDescriptorsLock::add(int descriptor) {
  if (descriptor >= 0 && descriptor < kMost) word_of(descriptor) |= bit_of(descriptor);
}
void PrivateDescriptorsLock::remove(int descriptor) {
  if (descriptor >= 0 && descriptor < kMost) word_of(descriptor) &= ~bit_of(descriptor);
}

void make_private(int descriptor) { PrivateDescriptorsLock().add(descriptor); }
void make_public(int descriptor) { PrivateDescriptorsLock().remove(descriptor); }

void close_private(int descriptor) {
  PrivateDescriptorsLock lock;
  lock.remove(descriptor);
  close(descriptor);
}

}  // namespace gpipe::distributed
