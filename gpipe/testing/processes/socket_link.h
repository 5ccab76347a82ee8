// socket_links(): for tests, links between devices of the fake accelerator, in one process or in
// several.
#ifndef GPIPE_TESTING_PROCESSES_SOCKET_LINK_H_
#define GPIPE_TESTING_PROCESSES_SOCKET_LINK_H_

#include <cstdint>

#include "gpipe/distributed/packets/device_link.h"

namespace gpipe::distributed {

// A message is a kernel at either end, which does not end before the other one has begun, as
// NCCL's: the stream waits, and no thread of the program. Bytes go through a local socket; the
// race detector sees what is read and written. GPIPE_DEVICE_LINKS=sockets.
//
// Messages of other sizes or numbers at the two ends break the link.
const LinkKind& socket_links();

// How often this process has sent, for tests that shall not pass by way of the host.
int64_t sent_by_sockets();

}  // namespace gpipe::distributed

#endif  // GPIPE_TESTING_PROCESSES_SOCKET_LINK_H_
