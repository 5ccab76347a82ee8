#include "gpipe/distributed/packets/parcels.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/distributed/packets/message_plan.h"
#include "gpipe/distributed/packets/transit.h"

namespace gpipe::distributed {
namespace {

// The tag may be any number: no run is in progress, so a run's message cannot be confused with a
// parcel.
constexpr int32_t kTag = 0;

}  // namespace

void move_parcels(Group& group, Control& control,
                  const std::vector<internal::Processes::Parcel>& sends,
                  const std::vector<internal::Processes::Parcel>& receives) {
  Transit transit;
  const Control::Watch watch(control, [&] { transit.cancel(); });
  std::vector<std::unique_ptr<Transit::Pending>> messages;
  std::string symptom = "a message was canceled";
  try {
    for (const auto& parcel : receives) {
      messages.push_back(transit.add(group.receive(parcel.bytes, parcel.process, kTag)));
    }
    for (const auto& parcel : sends) {
      messages.push_back(transit.add(group.send(parcel.bytes, parcel.process, kTag)));
    }
    const auto arrives = [](const auto& message) { return message->wait(); };
    if (std::all_of(messages.begin(), messages.end(), arrives)) return;
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
