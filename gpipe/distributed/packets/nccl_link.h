// nccl_links(): NCCL's links between GPUs of different processes.
//
// Written against NCCL's C interface. Compiled and linked everywhere, and never run on a GPU: there
// was none. docs/design/distributed.md says why it is not c10d's ProcessGroupNCCL.
#ifndef GPIPE_DISTRIBUTED_PACKETS_NCCL_LINK_H_
#define GPIPE_DISTRIBUTED_PACKETS_NCCL_LINK_H_

#include "gpipe/distributed/packets/device_link.h"

namespace gpipe::distributed {

// Each link is a communicator of two. Its functions are those of the libnccl that LibTorch has
// loaded, so that nothing is loaded for it. If LibTorch is one without CUDA, or without NCCL's
// header, check_available() says so.
const LinkKind& nccl_links();

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_PACKETS_NCCL_LINK_H_
