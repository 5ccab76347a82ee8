// Transit: messages between processes that are on their way, and that can be canceled together.
#ifndef GPIPE_DISTRIBUTED_PACKETS_TRANSIT_H_
#define GPIPE_DISTRIBUTED_PACKETS_TRANSIT_H_

#include <list>
#include <memory>
#include <mutex>
#include <utility>

#include "gpipe/distributed/meet/c10d.h"
#include "gpipe/runtime/exit_gate.h"

namespace gpipe::distributed {

// Outlives its messages. Thread-safety: safe.
class Transit {
 public:
  // A message on its way, which can be canceled as long as this object lives.
  class Pending {
   public:
    Pending(Transit& transit, std::unique_ptr<Transfer> transfer)
        : transit_(transit), transfer_(std::move(transfer)) {
      const std::lock_guard<std::mutex> lock(transit_.mutex_);
      place_ = transit_.pending_.insert(transit_.pending_.end(), transfer_.get());
      if (transit_.is_cancelled_) transfer_->cancel();
    }
    ~Pending() {
      const std::lock_guard<std::mutex> lock(transit_.mutex_);
      transit_.pending_.erase(place_);
    }
    Pending(const Pending&) = delete;
    Pending& operator=(const Pending&) = delete;

    // As Transfer::wait().
    bool wait() {
      const internal::WaitScope waits;
      return transfer_->wait();
    }

   private:
    Transit& transit_;
    std::unique_ptr<Transfer> transfer_;
    std::list<Transfer*>::iterator place_;
  };

  std::unique_ptr<Pending> add(std::unique_ptr<Transfer> transfer) {
    return std::make_unique<Pending>(*this, std::move(transfer));
  }

  // Cancels all messages, also those that are added later.
  void cancel() noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_cancelled_ = true;
    for (Transfer* transfer : pending_) transfer->cancel();
  }

 private:
  std::mutex mutex_;
  std::list<Transfer*> pending_;
  bool is_cancelled_ = false;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_PACKETS_TRANSIT_H_
