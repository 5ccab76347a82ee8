// HostLead: keeps a worker from being far ahead of its device, while messages take memory there.
#ifndef GPIPE_DISTRIBUTED_PACKETS_HOST_LEAD_H_
#define GPIPE_DISTRIBUTED_PACKETS_HOST_LEAD_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace gpipe::distributed {

// A message of a link takes memory that two streams use. The allocator gives it out again only when
// the device has come to the message's end, however soon the host was there. So a host that is a
// whole step of training ahead would have all of its messages in memory at once.
//
// Waiting here cannot be waiting in a circle. A stage's stream waits only for what had been put on
// streams before, by the processes in the order of their messages (DeviceLinks).
//
// Thread-safety: one thread, that of the worker.
class HostLead {
 public:
  // What may be launched and not done on the device: so many steps that have messages, or steps
  // whose messages have so many bytes.
  struct Limits {
    int64_t steps = 8;
    int64_t bytes = 64 << 20;
  };

  // The step in progress sends or receives these messages, which are bytes.
  void add(const std::vector<at::Tensor>& messages);
  // Called before the next step. `stream`: of the stage. Waits for the device while both limits are
  // exceeded.
  void next_step(const c10::Stream& stream, const Limits& most);

 private:
  struct Launched {
    std::shared_ptr<c10::Event> done;
    int64_t bytes = 0;
  };
  void forget_first();

  std::deque<Launched> launched_;  // steps that the device may not have done
  int64_t bytes_launched_ = 0;
  int64_t bytes_ = 0;  // of the step in progress
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_PACKETS_HOST_LEAD_H_
