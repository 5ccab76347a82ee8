// Reduction: gradients added up over replicas.
#ifndef GPIPE_INTERNAL_REPLICAS_REDUCTION_H_
#define GPIPE_INTERNAL_REPLICAS_REDUCTION_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "gpipe/world.h"

namespace gpipe::internal {

// Adds up the gradients of the same parameters in the same process of all replicas, in the tree of
// TreeSum, of which each replica has the part of `groups_each` groups. All replicas get the sums.
//
// Each parameter has an owner, which gets the others' gradients, adds up, and gives the sum to all:
// so each replica sends and receives about as much as the gradients have bytes, twice.
//
// `parameters`: those of this process; frozen ones have no sums. `sums`: [parameter] of this
// replica; undefined: none has arrived. Called within in_call(), by this process of all replicas:
// it needs no other processes, which may still compute. Throws c10::ValueError for a gradient that
// is sparse or of another type than its parameter.
//
// False, and nothing has happened, if a replica has other parameters, or has frozen others;
// agree_on_forms() says so to all processes.
[[nodiscard]] bool sum_over_replicas(const World& world, const std::vector<at::Tensor>& parameters,
                                     int64_t groups_each, std::vector<at::Tensor>& sums);

// [parameter] the replica that owns it.
std::vector<int64_t> owners_of(const World& world, const std::vector<at::Tensor>& parameters);

// Gives the owners' values of these parameters to all replicas; nothing of those that are nobody's
// (kNobody). Called within in_call(), by processes that agree on the parameters (check_forms) and
// the owners.
void share_over_replicas(const World& world, const std::vector<at::Tensor>& parameters,
                         const std::vector<int64_t>& owners);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_REPLICAS_REDUCTION_H_
