// StagedTransport: moves packets of stages on an accelerator between processes that can exchange
// host memory only.
#ifndef GPIPE_INTERNAL_RUN_STAGED_TRANSPORT_H_
#define GPIPE_INTERNAL_RUN_STAGED_TRANSPORT_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "gpipe/internal/tensors/packet.h"
#include "gpipe/internal/tensors/transfer.h"
#include "gpipe/runtime/transport.h"
#include "gpipe/schedule/program.h"

namespace gpipe::internal {

// A packet for a worker of another process is copied to pinned host memory, and handed to `beyond`
// with the events of that copy, for which `beyond` waits before it reads the packet. A packet that
// arrives is copied to the device. The stage's stream waits for that copy (arrive()), and no thread
// does. Between workers of this process packets stay on their device.
//
// Requirements: the constructor's arguments outlive it. All stages of this process are on `device`.
class StagedTransport final : public Transport<Packet> {
 public:
  // `by_host`: [worker] whether packets for this worker go by way of the host. Packets for other
  // workers are handed to `beyond` on `device`, with their events.
  StagedTransport(Transport<Packet>& beyond, std::vector<bool> by_host, c10::Device device,
                  Transfers& transfers)
      : beyond_(beyond), by_host_(std::move(by_host)), device_(device), transfers_(transfers) {}

  void send(const std::vector<Step::Send>& sends, std::vector<Packet>& packets) override;
  bool receive(int32_t worker, const std::vector<int32_t>& slots,
               std::vector<Packet>& packets) override;
  void cancel() noexcept override { beyond_.cancel(); }

 private:
  Transport<Packet>& beyond_;
  const std::vector<bool> by_host_;
  const c10::Device device_;
  Transfers& transfers_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_RUN_STAGED_TRANSPORT_H_
