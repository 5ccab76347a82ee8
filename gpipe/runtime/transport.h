// Transport: moves payloads between the workers of a run.
//
// A worker does not know in which threads or processes the other workers run. It sends to the slots
// that its program names and waits for its own slots. Mailboxes is the transport within one
// process.
#ifndef GPIPE_RUNTIME_TRANSPORT_H_
#define GPIPE_RUNTIME_TRANSPORT_H_

#include <cstdint>
#include <vector>

#include "gpipe/schedule/program.h"

namespace gpipe::internal {

// A transport serves one run.
//
// Thread-safety: send() and receive() are called by one thread per worker, for all workers at once.
// cancel() may be called from any thread.
template <typename Payload>
class Transport {
 public:
  virtual ~Transport() = default;

  // Moves payloads[k] to the slot that sends[k] names. Called on the worker that made the payloads,
  // right after its action. It does not wait for the receiver. What the worker did before is
  // visible to the receiver.
  virtual void send(const std::vector<Step::Send>& sends, std::vector<Payload>& payloads) = 0;

  // Waits until these slots of `worker` are filled and moves their contents into `payloads`, which
  // has as many entries. Returns false if this run was canceled. A transport that learns of a
  // failure elsewhere (e.g. another process ended) throws that failure.
  virtual bool receive(int32_t worker, const std::vector<int32_t>& slots,
                       std::vector<Payload>& payloads) = 0;

  // Wakes every waiting worker, in other processes too. From then on receive() returns false here.
  // Idempotent.
  virtual void cancel() noexcept = 0;
};

}  // namespace gpipe::internal

#endif  // GPIPE_RUNTIME_TRANSPORT_H_
