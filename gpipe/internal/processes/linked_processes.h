// LinkedProcesses: what processes offer whose devices may be joined by links.
#ifndef GPIPE_INTERNAL_PROCESSES_LINKED_PROCESSES_H_
#define GPIPE_INTERNAL_PROCESSES_LINKED_PROCESSES_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "gpipe/internal/processes/processes.h"

namespace gpipe::internal {

// A second interface of the object that is a Processes. The core asks for it by dynamic_cast, and
// without it moves everything through the host.
class LinkedProcesses {
 public:
  virtual ~LinkedProcesses() = default;

  // The links between the devices of some processes.
  class Links {
   public:
    virtual ~Links() = default;
    // As Processes::move(), but the bytes are on the device, and no thread waits for it. Work that
    // was put on the device's current stream before comes before the messages. Work that is put on
    // it afterwards comes behind all of them, so it may read what was received, change what was
    // sent, and reuse the memory of both.
    //
    // If another process fails, that work goes on with garbage as received bytes, and the call in
    // progress throws at its next exchange.
    virtual void move(const std::vector<Processes::Parcel>& sends,
                      const std::vector<Processes::Parcel>& receives) = 0;
  };

  // The links between `ranks`, this one among them. All of them call this together, within a call,
  // with the same `ranks`; the processes of other ranks may be doing something else. `device`: this
  // process's device. The result is valid until the end of the call.
  //
  // Returns null in all of them, so that bytes go through the host, unless each of them has a
  // device of its own of a kind that has links.
  virtual Links* links(const std::vector<int64_t>& ranks, c10::Device device) = 0;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_PROCESSES_LINKED_PROCESSES_H_
