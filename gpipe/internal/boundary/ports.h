// Ports: the ends of the routes that meet in a stage.
#ifndef GPIPE_INTERNAL_BOUNDARY_PORTS_H_
#define GPIPE_INTERNAL_BOUNDARY_PORTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "gpipe/schedule/routes.h"
#include "skip/layout.h"

namespace gpipe::internal {

// A stage receives and sends one packet for each port, in this order: the activation (for the first
// stage the model's input, for the last its output), then the skips in the order of their routes,
// then the tied parameters. A value type.
struct Ports {
  struct Port {
    std::optional<skip::Key> skip;  // none: the activation
    // The stage at the other end; -1 for the model's input, the number of stages for its output.
    int64_t stage;
  };
  std::vector<Port> inputs;
  std::vector<Port> outputs;
  // After the inputs and outputs come the parameters tied to other processes or devices, by number.
  // Their packets are empty on the way forward. On the way back they have the terms of a
  // parameter's gradient from all later stages.
  std::vector<size_t> tied_in;
  std::vector<size_t> tied_out;
  // The outputs' numbers in the order in which their gradients are added up. The plain model adds
  // up the gradients of a tensor with several uses in this order, from the last use to the first.
  std::vector<size_t> gradient_order;
};

// Returns each skip as a chain of skips from one partition to the next, for pipelines whose skips
// go through every stage.
std::vector<skip::SkipEdge> hops(const std::vector<skip::SkipEdge>& skips);

// The ports of a stage. The routes must have been created with `skips`, in this order, followed by
// an edge for each of `tied`. `tied`: [edge] the number of the tied parameter.
Ports ports_of(int64_t stage, const Routes& routes, const std::vector<skip::SkipEdge>& skips,
               const std::vector<size_t>& tied = {});

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BOUNDARY_PORTS_H_
