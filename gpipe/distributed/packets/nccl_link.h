// nccl_links(): NCCL's links between GPUs of different processes.
//
// Written against NCCL's C interface. Compiled and linked everywhere, and never run on a GPU: none
// was available. docs/design/distributed.md says why it is not c10d's ProcessGroupNCCL.
#ifndef GPIPE_DISTRIBUTED_PACKETS_NCCL_LINK_H_
#define GPIPE_DISTRIBUTED_PACKETS_NCCL_LINK_H_

#include "gpipe/distributed/packets/device_link.h"

namespace gpipe::distributed {

// Each link is a communicator of its members. It uses the libnccl that LibTorch has loaded, so it
// loads no library. check_available() throws if LibTorch was built without CUDA or without NCCL's
// header.
const LinkKind& nccl_links();

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_PACKETS_NCCL_LINK_H_
