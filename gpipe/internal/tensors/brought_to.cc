#include "gpipe/internal/tensors/brought_to.h"

#include "gpipe/internal/tensors/packet.h"
#include "gpipe/internal/tensors/transfer.h"

namespace gpipe::internal {

std::vector<at::Tensor> brought_to(c10::Device device, const std::vector<at::Tensor>& tensors) {
  Packet packet;
  for (const at::Tensor& tensor : tensors) packet.items.emplace_back().tensor = tensor.detach();
  Transfers(/*own_streams=*/false).depart(packet, device);
  arrive(packet, device);
  std::vector<at::Tensor> brought;
  for (const Item& item : packet.items) brought.push_back(item.tensor);
  return brought;
}

}  // namespace gpipe::internal
