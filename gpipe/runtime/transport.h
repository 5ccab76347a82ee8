// Transport: what moves payloads between the workers of a run.
//
// A worker knows neither the threads nor the processes in which the others are: it sends to the
// slots that its program names and waits for its own. In one process Mailboxes are enough.
#ifndef GPIPE_RUNTIME_TRANSPORT_H_
#define GPIPE_RUNTIME_TRANSPORT_H_

#include <cstdint>
#include <vector>

#include "gpipe/schedule/program.h"

namespace gpipe::internal {

// Serves one run. Thread-safety: send() and receive() by one thread per worker, all workers at
// once; cancel() and cancelled() from any thread.
template <typename Payload>
class Transport {
 public:
  virtual ~Transport() = default;

  // Takes payloads[k] to the slot that sends[k] names. Called on the worker that made them, right
  // after its action; it does not wait for the receiver. What the worker did before is visible to
  // the one that receives.
  virtual void send(const std::vector<Step::Send>& sends, std::vector<Payload>& payloads) = 0;

  // Waits until these slots of `worker` are filled and empties them into `payloads`, which has as
  // many entries. False: this run was cancelled. A transport that learns of a failure elsewhere
  // (another process ended) throws what happened.
  virtual bool receive(int32_t worker, const std::vector<int32_t>& slots,
                       std::vector<Payload>& payloads) = 0;

  // Wakes every worker that waits, in other processes too; from then on receive() returns false
  // here. Idempotent.
  virtual void cancel() noexcept = 0;
  virtual bool cancelled() const = 0;
};

}  // namespace gpipe::internal

#endif  // GPIPE_RUNTIME_TRANSPORT_H_
