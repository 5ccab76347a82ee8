#include "gpipe/internal/run/packet_transport.h"

#include <c10/util/SmallVector.h>

namespace gpipe::internal {

void PacketTransport::send(const std::vector<Step::Send>& sends, std::vector<Packet>& packets) {
  c10::SmallVector<c10::Device, 4> targets;
  for (const Step::Send& to : sends) targets.push_back(device_of_stage_[to.stage]);
  transfers_.depart_together(packets, targets);
  mailboxes_.send(sends, packets);
}

}  // namespace gpipe::internal
