#include <ATen/Functions.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "gpipe/distributed/packets/packet_codec.h"
#include "gpipe/distributed/packets/packet_format.h"
#include "gpipe/distributed/packets/packet_reading.h"
#include "gpipe/internal/tensors/byte_tensor.h"

namespace gpipe::distributed {
namespace {

using internal::Item;
using internal::new_bytes;
using internal::Packet;

// The memory into which a part is received.
struct ReadPart {
  at::Tensor owner;
  at::Tensor packed;  // for kPackedAlone
  c10::Storage storage;
  int64_t in_storage = 0;  // where the part begins in the storage
};

ReadPart memory_of(const PartDescription& part, const at::Tensor& head, c10::Device device) {
  ReadPart result;
  if (part.place == Place::kPackedAlone) result.packed = new_bytes(part.travelling, device);
  if (part.place == Place::kInline && device.is_cpu()) {
    result.owner = head;
    result.storage = storage_over(head, data_of(head) + part.begin, part.bytes);
    return result;
  }
  result.owner = new_bytes(part.bytes + part.shift, device);
  if (device.is_cpu()) {
    result.storage = storage_over(result.owner, data_of(result.owner) + part.shift, part.bytes);
  } else {
    // On an accelerator the tensors use the allocator's own storage, because the allocator keeps
    // track of the streams that use it.
    result.storage = result.owner.storage();
    result.in_storage = part.shift;
  }
  return result;
}

// The strides of contiguous elements.
c10::SmallVector<int64_t, 6> dense_strides(c10::IntArrayRef sizes) {
  c10::SmallVector<int64_t, 6> strides(sizes.size());
  int64_t stride = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= sizes[i];
  }
  return strides;
}

// A view of the tensor, which has gaps, with each element once; and the contiguous elements that
// were sent, which take() copies into that view.
std::pair<at::Tensor, at::Tensor> to_and_from(const TensorDescription& tensor,
                                              const PartDescription& part, const ReadPart& memory,
                                              const at::Tensor& head) {
  c10::SmallVector<int64_t, 6> sizes = tensor.sizes;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (tensor.strides[i] == 0) sizes[i] = 1;
  }
  at::Tensor to = tensor_over(memory.storage, tensor.type, memory.in_storage + tensor.offset, sizes,
                              tensor.strides);
  c10::Storage sent = part.place == Place::kPacked
                          ? storage_over(head, data_of(head) + part.begin, part.travelling)
                          : memory.packed.storage();
  at::Tensor from = tensor_over(std::move(sent), tensor.type, 0, sizes, dense_strides(sizes));
  return {std::move(to), std::move(from)};
}

Item item_of(const ItemDescription& read, const std::vector<at::Tensor>& tensors) {
  Item item;
  if (read.tensor != kUndefined) item.tensor = tensors[read.tensor];
  item.needs_grad = (read.flags & kNeedsGrad) != 0;
  item.read_only = (read.flags & kReadOnly) != 0;
  item.shared = (read.flags & kShared) != 0;
  item.constant = (read.flags & kConstant) != 0;
  item.version = (read.flags & kChanged) != 0 ? -1 : 0;
  return item;
}

}  // namespace

IncomingPacket::IncomingPacket(const at::Tensor& head, int64_t limit, c10::Device device) {
  const PacketDescription read = read_description(
      {static_cast<const char*>(head.const_data_ptr()), static_cast<size_t>(head.numel())}, limit,
      device);
  head_bytes_ = read.head_bytes;
  packet_.kind = read.kind;
  std::vector<ReadPart> memories;
  for (const PartDescription& part : read.parts) {
    memories.push_back(memory_of(part, head, device));
    const ReadPart& memory = memories.back();
    if (part.place == Place::kAlone) {
      bodies_.push_back(memory.owner.narrow(0, part.shift, part.bytes));
    } else if (part.place == Place::kPackedAlone) {
      bodies_.push_back(memory.packed);
    }
  }
  std::vector<at::Tensor> tensors;
  tensors.reserve(read.tensors.size());
  std::vector<const c10::TensorImpl*> first_of_storage(read.parts.size());
  for (const TensorDescription& described : read.tensors) {
    const PartDescription& part = read.parts[described.part];
    const ReadPart& memory = memories[described.part];
    at::Tensor tensor =
        tensor_over(memory.storage, described.type, memory.in_storage + described.offset,
                    described.sizes, described.strides);
    if (is_packed(part.place)) {
      filled_later_.push_back(to_and_from(described, part, memory, head));
    }
    if ((described.flags & kConjugate) != 0) tensor._set_conj(true);
    if ((described.flags & kNegative) != 0) tensor._set_neg(true);
    const c10::TensorImpl*& first = first_of_storage[part.storage_number];
    if (first == nullptr) {
      first = tensor.unsafeGetTensorImpl();
    } else if (!tensor.is_inference()) {
      tensor.unsafeGetTensorImpl()->set_version_counter(first->version_counter());
    }
    tensors.push_back(std::move(tensor));
  }
  for (const ItemDescription& item : read.items) packet_.items.push_back(item_of(item, tensors));
}

Packet IncomingPacket::take() {
  for (auto& [to, from] : filled_later_) to.copy_(from);
  filled_later_.clear();
  bodies_.clear();
  // Versions are marked now, because receiving into the tensors does not count as a change.
  for (Item& item : packet_.items) {
    if (item.version == 0) item.mark_version();
  }
  return std::move(packet_);
}

}  // namespace gpipe::distributed
