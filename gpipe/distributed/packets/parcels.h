// Parcels: messages between processes outside of a run, all at once, through the host or over
// links.
#ifndef GPIPE_DISTRIBUTED_PACKETS_PARCELS_H_
#define GPIPE_DISTRIBUTED_PACKETS_PARCELS_H_

#include <vector>

#include "gpipe/distributed/control/control.h"
#include "gpipe/distributed/meet/c10d.h"
#include "gpipe/distributed/packets/device_links.h"
#include "gpipe/internal/processes/processes.h"

namespace gpipe::distributed {

// As Processes::move(). Throws DistributedFailure if another rank fails meanwhile or a connection
// breaks. The group is unusable afterwards.
void move_parcels(Group& group, Control& control,
                  const std::vector<internal::Processes::Parcel>& sends,
                  const std::vector<internal::Processes::Parcel>& receives);

// As LinkedProcesses::Links::move(), over the links that this rank has to the others (lane 0).
// Throws DistributedFailure if a link broke.
void move_parcels(DeviceLinks& links, Control& control,
                  const std::vector<internal::Processes::Parcel>& sends,
                  const std::vector<internal::Processes::Parcel>& receives);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_PACKETS_PARCELS_H_
