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
#include "gpipe/distributed/packets/message_plan.h"
#include "gpipe/internal/tensors/packet.h"
#include "gpipe/runtime/transport.h"
#include "gpipe/schedule/program.h"

namespace gpipe::distributed {

struct RemoteTransportOptions {
  // How many packets each worker is ready to receive before it waits for them.
  int64_t window = 4;
  // A packet that would take more memory than this is taken for damaged.
  int64_t greatest_packet = int64_t{1} << 36;
  // What has been sent, and not been received, is let go at the end of the run, and earlier only
  // beyond so many bytes: that takes a thread.
  int64_t unreceived = 8 << 20;
  // For stages on an accelerator: the links of their device, which join all edges of the plan that
  // begin or end here. Null: packets are on the CPU.
  DeviceLinks* links = nullptr;
  // What a stage runs: "layer 5 ('relu')". For the report of an exception; called on the worker
  // that throws. Default: nobody knows.
  std::function<std::string(int64_t stage)> current_layer = nullptr;
};

// A transport of one run: for workers of this process as Mailboxes, for others as messages of a
// group. Receives are posted before anybody waits for them; sends never block.
//
// With links only the heads of packets go over the group, and the tensors from device to device;
// who receives a packet then has to wait for its events (arrive(), transfer.h).
//
// Requirements: the constructor's arguments outlive it. All ranks run the same program with the
// same plan. One run at a time on a group. Tensors are on the CPU, or all on the links' device.
//
// Guarantees: as Transport. receive() throws DistributedFailure if another rank fails. cancel(),
// called where an exception is being handled as the executor does, reports it, with the stage and
// the micro-batch that its worker was at.
//
// Example:
//   RemoteTransport transport(program, plan, *group, &control);
//   auto failure = execute<Packet>(pool, program, transport, handler, options);
//   if (!failure) transport.finish();
class RemoteTransport final : public internal::Transport<internal::Packet> {
 public:
  // `control`: null where nobody but this process can fail (tests).
  RemoteTransport(const Program& program, MessagePlan& plan, Group& group, int64_t rank,
                  Control* control, const RemoteTransportOptions& options = {});
  // After anything but a finish() that has returned, the group is of no use any more: messages may
  // be on their way that nobody awaits.
  ~RemoteTransport() override;

  void send(const std::vector<Step::Send>& sends, std::vector<internal::Packet>& packets) override;
  bool receive(int32_t worker, const std::vector<int32_t>& slots,
               std::vector<internal::Packet>& packets) override;
  void cancel() noexcept override;

  // After a run without a failure: waits until all that this process has sent is received. Throws
  // DistributedFailure, and without a control std::runtime_error.
  void finish();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_PACKETS_REMOTE_TRANSPORT_H_
