// PacketTransport: moves packets between the stages of one process and between their devices.
#ifndef GPIPE_INTERNAL_RUN_PACKET_TRANSPORT_H_
#define GPIPE_INTERNAL_RUN_PACKET_TRANSPORT_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "gpipe/internal/tensors/packet.h"
#include "gpipe/internal/tensors/transfer.h"
#include "gpipe/runtime/mailboxes.h"
#include "gpipe/runtime/transport.h"
#include "gpipe/schedule/program.h"

namespace gpipe::internal {

// The copy of a packet to the receiving stage's device starts when the packet is sent. The receiver
// waits for the copy with arrive() (transfer.h).
//
// Requirements: the constructor's arguments outlive this object.
class PacketTransport final : public Transport<Packet> {
 public:
  PacketTransport(const Program& program, const std::vector<c10::Device>& device_of_stage,
                  Transfers& transfers)
      : mailboxes_(program.slots), device_of_stage_(device_of_stage), transfers_(transfers) {}

  void send(const std::vector<Step::Send>& sends, std::vector<Packet>& packets) override;
  bool receive(int32_t worker, const std::vector<int32_t>& slots,
               std::vector<Packet>& packets) override {
    return mailboxes_.receive(worker, slots, packets);
  }
  void cancel() noexcept override { mailboxes_.cancel(); }

 private:
  Mailboxes<Packet> mailboxes_;
  const std::vector<c10::Device>& device_of_stage_;
  Transfers& transfers_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_RUN_PACKET_TRANSPORT_H_
