// link_rounds: in which order the processes connect the links of a program.
#ifndef GPIPE_DISTRIBUTED_PACKETS_LINK_ROUNDS_H_
#define GPIPE_DISTRIBUTED_PACKETS_LINK_ROUNDS_H_

#include <vector>

#include "gpipe/distributed/packets/message_plan.h"

namespace gpipe::distributed {

// Splits `edges` into rounds. No rank is in two edges of a round, so the edges of a round can be
// connected at the same time although each process connects one link after another. If a rank is in
// at most n edges, there are at most 2 n - 1 rounds.
//
// All processes get the same rounds from the same edges, in whatever order these are.
std::vector<std::vector<Edge>> link_rounds(std::vector<Edge> edges);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_PACKETS_LINK_ROUNDS_H_
