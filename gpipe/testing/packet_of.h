// packet_of: a packet of tensors, as a stage would send it, for tests of code that handles packets.
#ifndef GPIPE_TESTING_PACKET_OF_H_
#define GPIPE_TESTING_PACKET_OF_H_

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "gpipe/internal/tensors/packet.h"

namespace gpipe::testing {

// The packet of a value that is a list of tensors, all of which want a gradient.
inline internal::Packet packet_of(std::vector<at::Tensor> tensors) {
  internal::Packet packet;
  packet.kind = internal::ValueKind::kTensors;
  for (at::Tensor& tensor : tensors) packet.items.push_back({std::move(tensor), true});
  return packet;
}

// The packet of a value that is a single tensor, which wants a gradient. (It is not an overload of
// packet_of(), because a call with a list of one tensor could then mean either.)
inline internal::Packet packet_of_one(const at::Tensor& tensor) {
  internal::Packet packet;
  packet.items.push_back({tensor, true});
  return packet;
}

}  // namespace gpipe::testing

#endif  // GPIPE_TESTING_PACKET_OF_H_
