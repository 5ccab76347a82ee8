// socket_links(): for tests, links between devices of the fake accelerator, in one process or in
// several.
#ifndef GPIPE_TESTING_PROCESSES_SOCKET_LINK_H_
#define GPIPE_TESTING_PROCESSES_SOCKET_LINK_H_

#include <cstdint>

#include "gpipe/distributed/packets/device_link.h"

namespace gpipe::distributed {

// As with NCCL, the messages of a call are a kernel on each side, which does not end before the
// kernels of the other sides have begun. So a stream waits, and no thread of the program does. The
// bytes go through a local socket, and the race detector sees the accesses. The name for
// GPIPE_DEVICE_LINKS is "sockets".
//
// Failures are like NCCL's, too. If the kernel of the other side never comes, only an abort at its
// own side ends a kernel; the end of the other process does not. An abort first sets a flag for the
// kernels. Then it waits for a thread that is launching a kernel, and for the launched kernels,
// which may wait for other links.
//
// If sizes of messages differ at the two ends, the link breaks.
const LinkKind& socket_links();

// How often this process has sent by such links, for tests that must not pass if tensors went
// through the host.
int64_t sent_by_sockets();
// How many such links this process has begun to connect.
int64_t connected_by_sockets();

}  // namespace gpipe::distributed

#endif  // GPIPE_TESTING_PROCESSES_SOCKET_LINK_H_
