// RemoteTransport: moves packets between the workers of one run in several processes.
#ifndef GPIPE_DISTRIBUTED_PACKETS_REMOTE_TRANSPORT_H_
#define GPIPE_DISTRIBUTED_PACKETS_REMOTE_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/distributed/control/control.h"
#include "gpipe/distributed/meet/c10d.h"
#include "gpipe/distributed/packets/device_links.h"
#include "gpipe/distributed/packets/host_lead.h"
#include "gpipe/distributed/packets/message_plan.h"
#include "gpipe/internal/tensors/packet.h"
#include "gpipe/runtime/transport.h"
#include "gpipe/schedule/program.h"

namespace gpipe::distributed {

struct RemoteTransportOptions {
  // How many packets each worker is ready to receive before it waits for them.
  int64_t window = 4;
  // A packet that would take more memory than this, in bytes, is treated as damaged.
  int64_t greatest_packet = int64_t{1} << 36;
  // Sent packets are kept until the end of the run. Beyond this many bytes to one rank, a thread
  // releases them earlier, as they are received.
  int64_t unreceived = 8 << 20;
  // For stages on an accelerator: the links of their device, one for each edge of the plan that
  // begins or ends here. Null: packets are on the CPU.
  DeviceLinks* links = nullptr;
  // How far a worker may be ahead of its device, with links.
  HostLead::Limits most_ahead;
  // The layer that a stage runs, e.g. "layer 5 ('relu')", for the report of an exception. It is
  // called on the worker that throws. Default: the layer is not reported.
  std::function<std::string(int64_t stage)> current_layer = nullptr;
};

// The transport of one run. Packets to workers of this process go through Mailboxes, and packets to
// other processes are messages of a group. Receives are posted before a worker waits for them;
// sends never block.
//
// With links only the heads of packets go over the group, and the tensors from device to device.
// The receiver of a packet must then wait for its events (arrive(), transfer.h). Without links a
// packet on the CPU may still be arriving from a device (Transfers::depart()). Then a thread of the
// transport waits for it and sends it, and not the worker, which launches its next cell meanwhile.
//
// Requirements: the constructor's arguments outlive it. All ranks run the same program with the
// same plan. One run at a time on a group. Tensors are on the CPU, or all on the links' device.
//
// Guarantees: as Transport. receive() throws DistributedFailure if another rank fails. If cancel()
// is called while an exception is being handled, as the executor does, it reports that exception,
// with the stage and the micro-batch that its worker was at.
//
// Example:
//   RemoteTransport transport(program, plan, *group, &control);
//   auto failure = execute<Packet>(pool, program, transport, handler, options);
//   if (!failure) transport.finish();
class RemoteTransport final : public internal::Transport<internal::Packet> {
 public:
  // `control`: null if no other process can fail (in tests).
  RemoteTransport(const Program& program, MessagePlan& plan, Group& group, int64_t rank,
                  Control* control, const RemoteTransportOptions& options = {});
  // Unless finish() has returned, the group is unusable afterwards: messages may be in transit that
  // no rank receives.
  ~RemoteTransport() override;

  void send(const std::vector<Step::Send>& sends, std::vector<internal::Packet>& packets) override;
  bool receive(int32_t worker, const std::vector<int32_t>& slots,
               std::vector<internal::Packet>& packets) override;
  void cancel() noexcept override;

  // After a run without a failure: waits until all that this process has sent is received. Throws
  // DistributedFailure if that fails; without a control, std::runtime_error.
  void finish();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_PACKETS_REMOTE_TRANSPORT_H_
