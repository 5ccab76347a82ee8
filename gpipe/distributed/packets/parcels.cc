#include "gpipe/distributed/packets/parcels.h"

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "gpipe/distributed/packets/message_plan.h"
#include "gpipe/runtime/exit_gate.h"

namespace gpipe::distributed {
namespace {

// The tag may be any number: no run is in progress, so a run's message cannot be confused with a
// parcel.
constexpr int32_t kTag = 0;

// Transfers that end early if another rank fails.
class Transfers {
 public:
  void add(std::unique_ptr<Transfer> transfer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_cancelled_) transfer->cancel();
    transfers_.push_back(std::move(transfer));
  }

  // Called after the last add(). Waits for all transfers.
  bool wait() {
    const internal::WaitScope waits;
    for (const auto& transfer : transfers_) {
      if (!transfer->wait()) return false;
    }
    return true;
  }

  void cancel() noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_cancelled_ = true;
    for (const auto& transfer : transfers_) transfer->cancel();
  }

 private:
  std::mutex mutex_;
  bool is_cancelled_ = false;
  std::vector<std::unique_ptr<Transfer>> transfers_;  // does not change once wait() is called
};

}  // namespace

void move_parcels(Group& group, Control& control,
                  const std::vector<internal::Processes::Parcel>& sends,
                  const std::vector<internal::Processes::Parcel>& receives) {
  Transfers transfers;
  const Control::Watch watch(control, [&] { transfers.cancel(); });
  std::string symptom = "a message was canceled";
  try {
    for (const auto& parcel : receives) {
      transfers.add(group.receive(parcel.bytes, parcel.process, kTag));
    }
    for (const auto& parcel : sends) {
      transfers.add(group.send(parcel.bytes, parcel.process, kTag));
    }
    if (transfers.wait()) return;
  } catch (const std::exception& error) {
    // The connection broke most likely because another rank failed. Then that rank's own fault
    // explains it better than this symptom.
    symptom = std::string("messages outside of a run failed: ") + error.what();
  }
  control.throw_failure(symptom);
}

void move_parcels(DeviceLinks& links, Control& control,
                  const std::vector<internal::Processes::Parcel>& sends,
                  const std::vector<internal::Processes::Parcel>& receives) {
  DeviceLinks::Messages from_here;
  DeviceLinks::Messages to_here;
  for (const auto& parcel : sends) {
    from_here[Edge{control.rank(), parcel.process}].push_back(parcel.bytes);
  }
  for (const auto& parcel : receives) {
    to_here[Edge{parcel.process, control.rank()}].push_back(parcel.bytes);
  }
  try {
    links.exchange(from_here, to_here);
  } catch (const std::runtime_error& error) {
    control.throw_failure(std::string("messages outside of a run failed: ") + error.what());
  }
}

}  // namespace gpipe::distributed
