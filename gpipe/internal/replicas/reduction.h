// Reduction: gradients added up over replicas.
#ifndef GPIPE_INTERNAL_REPLICAS_REDUCTION_H_
#define GPIPE_INTERNAL_REPLICAS_REDUCTION_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "gpipe/world.h"

namespace gpipe::internal {

// Adds up the gradients of the same parameters in the same process of all replicas. The order is
// the tree of TreeSum, in which each replica has `groups_each` groups. All replicas get the sums.
//
// Each parameter has an owner: a replica that gets the others' gradients, adds them up, and gives
// the sum to all. So each replica sends and receives about twice as many bytes as the gradients
// have.
//
// `parameters`: the parameters of this process; frozen ones have no sums. `sums`: [parameter], the
// sum in this replica, dense and of the parameter's type and shape, which is replaced by the sum
// over all replicas; undefined if no gradient has arrived. Called within in_call(), by the same
// process of all replicas. Processes of other stages may still compute.
//
// Returns false, and changes nothing, if the replicas have different parameters, or have frozen
// different ones. agree_on_signatures() then reports that to all processes.
[[nodiscard]] bool sum_over_replicas(const World& world, const std::vector<at::Tensor>& parameters,
                                     int64_t groups_each, std::vector<at::Tensor>& sums);

// Returns, by parameter, the replica that owns it. All replicas own about as many bytes of trained
// parameters, and about as many bytes of frozen parameters.
std::vector<int64_t> owners_of(const World& world, const std::vector<at::Tensor>& parameters);

// Gives the owners' values of these parameters to all replicas. Parameters owned by kNobody are
// skipped. Called within in_call(), by processes that agree on the parameters (check_signatures)
// and the owners.
void share_over_replicas(const World& world, const std::vector<at::Tensor>& parameters,
                         const std::vector<int64_t>& owners);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_REPLICAS_REDUCTION_H_
