// RunTransport: the transports that move the packets of one run.
#ifndef GPIPE_INTERNAL_RUN_RUN_TRANSPORT_H_
#define GPIPE_INTERNAL_RUN_RUN_TRANSPORT_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/internal/processes/processes.h"
#include "gpipe/internal/processes/stage_map.h"
#include "gpipe/internal/run/packet_transport.h"
#include "gpipe/internal/run/program_cache.h"
#include "gpipe/internal/run/staged_transport.h"
#include "gpipe/internal/tensors/packet.h"
#include "gpipe/internal/tensors/transfer.h"
#include "gpipe/runtime/transport.h"
#include "gpipe/world.h"

namespace gpipe::internal {

// In one process, packets go from device to device. Over several processes, they go to the other
// processes, too. They go by way of the host, unless the processes exchange device memory directly.
//
// Requirements: the constructor's arguments outlive this object.
class RunTransport {
 public:
  // `devices`: [stage]. `current_layer`: see Processes::begin_run().
  RunTransport(ProgramCache::Compiled& compiled, const World& world, const StageMap& stage_map,
               const std::vector<c10::Device>& devices, Transfers& transfers,
               std::function<std::string(int64_t stage)> current_layer);
  RunTransport(const RunTransport&) = delete;
  RunTransport& operator=(const RunTransport&) = delete;

  Transport<Packet>& get() { return *transport_; }
  // Called after a run without a failure. Waits until all that was sent to other processes has
  // arrived. Throws if another process failed after this one was done.
  void finish() {
    if (beyond_ != nullptr) beyond_->finish();
  }

 private:
  std::optional<PacketTransport> within_;
  std::unique_ptr<Processes::Run> beyond_;
  std::optional<StagedTransport> staged_;
  Transport<Packet>* transport_ = nullptr;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_RUN_RUN_TRANSPORT_H_
