// LinkedProcesses: what processes offer whose devices may be joined by links.
#ifndef GPIPE_INTERNAL_PROCESSES_LINKED_PROCESSES_H_
#define GPIPE_INTERNAL_PROCESSES_LINKED_PROCESSES_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "gpipe/internal/processes/processes.h"

namespace gpipe::internal {

// A second interface of the object that is a Processes. ParcelWay asks for it by dynamic_cast, and
// without it moves everything through the host.
class LinkedProcesses {
 public:
  virtual ~LinkedProcesses() = default;

  // The links between the devices of some processes.
  class Links {
   public:
    virtual ~Links() = default;
    // As ParcelWay::move(), and no thread waits for the device.
    virtual void move(const std::vector<Processes::Parcel>& sends,
                      const std::vector<Processes::Parcel>& receives) = 0;
  };

  // From one rank to another.
  using Direction = std::pair<int64_t, int64_t>;

  // The links between `ranks`, this one among them. All of them call this together, within a call,
  // with the same `ranks` and `directions`; the processes of other ranks may be doing something
  // else. Without directions each sends to each other one, over one link of all of them: then they
  // move() equally often, and their n-th moves belong together. `device`: this process's device.
  // The result is valid until the next links(), or the end of the call.
  //
  // Returns null in all of them, so that bytes go through the host, unless each of them has a
  // device of its own of a kind that has links.
  virtual Links* links(const std::vector<int64_t>& ranks, const std::vector<Direction>& directions,
                       c10::Device device) = 0;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_PROCESSES_LINKED_PROCESSES_H_
