// Arriving: turns the packets that arrive at a cell into the input tensors that its layers get.
#ifndef GPIPE_INTERNAL_BOUNDARY_ARRIVING_H_
#define GPIPE_INTERNAL_BOUNDARY_ARRIVING_H_

#include <ATen/core/Tensor.h>

#include <vector>

#include "gpipe/internal/boundary/boundary.h"
#include "gpipe/internal/boundary/layers_result.h"
#include "gpipe/internal/boundary/staying.h"
#include "gpipe/internal/tensors/packet.h"

namespace gpipe::internal {

// Throws c10::Error for an input that was changed in place on its way, by a stage that has its
// memory, too. If that loses no gradient, the input is accepted as it is now: it has the plain
// model's value.
void check_arrived(const Boundary& boundary, bool record, std::vector<Packet>& inputs);

// Returns the inputs as the layers get them: [port][tensor]. They are aliases, so that the packets
// keep no graph alive and no graph crosses the boundary. The gradients of those that need one end
// in result.graph. A tensor that arrives several times is one tensor here, too, and has one
// gradient. Tensors that must not be changed in place are given to `read_only`. Memory with marks
// (see Item) is noted in `result`, for the outputs.
std::vector<std::vector<at::Tensor>> attach(const Boundary& boundary, bool record,
                                            const std::vector<Packet>& inputs, LayersResult& result,
                                            ReadOnlyInputs& read_only);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BOUNDARY_ARRIVING_H_
