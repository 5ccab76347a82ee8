// ParcelWay: the way of bytes between the devices of some processes, outside of a run.
#ifndef GPIPE_INTERNAL_PROCESSES_PARCEL_WAY_H_
#define GPIPE_INTERNAL_PROCESSES_PARCEL_WAY_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "gpipe/internal/processes/linked_processes.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/world.h"

namespace gpipe::internal {

// Bytes go over links between the devices where there are any, and otherwise through pinned memory
// of the host.
//
// Requirements: `world` outlives it. It is used within the call in which it was made.
class ParcelWay {
 public:
  // The arguments of LinkedProcesses::links(). All `ranks` make it together.
  ParcelWay(const World& world, const std::vector<int64_t>& ranks,
            const std::vector<LinkedProcesses::Direction>& directions, c10::Device device);
  // Between the same process of all replicas, in all directions. They move() equally often.
  static ParcelWay between_replicas(const World& world, c10::Device device);

  c10::Device device() const { return device_; }

  // As Processes::move(), but the bytes are on device(). Work that was put on its current stream
  // before comes before the messages. Work that is put on it afterwards comes behind all of them,
  // so it may read what was received, change what was sent, and reuse the memory of both. Without
  // links the thread waits for the device once, if it sends something.
  //
  // If another process fails, that work goes on with garbage as received bytes, and the call in
  // progress throws here or at its next exchange.
  void move(const std::vector<Processes::Parcel>& sends,
            const std::vector<Processes::Parcel>& receives) const;

 private:
  const World& world_;
  const c10::Device device_;
  LinkedProcesses::Links* links_ = nullptr;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_PROCESSES_PARCEL_WAY_H_
