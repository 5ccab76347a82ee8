#include "gpipe/distributed/packets/host_lead.h"

#include <utility>

#include "gpipe/internal/tensors/transfer.h"
#include "gpipe/runtime/exit_gate.h"

namespace gpipe::distributed {

void HostLead::add(const std::vector<at::Tensor>& messages) {
  for (const at::Tensor& message : messages) bytes_ += message.numel();
}

void HostLead::next_step(const c10::Stream& stream, const Limits& most) {
  if (bytes_ > 0) {
    launched_.push_back({internal::record_event(stream), bytes_});
    bytes_launched_ += std::exchange(bytes_, 0);
  }
  while (!launched_.empty() && launched_.front().done->query()) forget_first();
  while (static_cast<int64_t>(launched_.size()) > most.steps && bytes_launched_ > most.bytes) {
    const internal::WaitScope waits;
    launched_.front().done->synchronize();
    forget_first();
  }
}

void HostLead::forget_first() {
  bytes_launched_ -= launched_.front().bytes;
  launched_.pop_front();
}

}  // namespace gpipe::distributed
