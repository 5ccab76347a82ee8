// Ports: the ends of the routes that meet in a stage.
#ifndef GPIPE_INTERNAL_PORTS_H_
#define GPIPE_INTERNAL_PORTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "gpipe/schedule/routes.h"
#include "skip/layout.h"

namespace gpipe::internal {

// A stage takes and gives one packet for each port, in this order: the activation (of the first
// stage the model's input, of the last its output), then the skips in the order of their routes.
// A value.
struct Ports {
  struct Port {
    std::optional<skip::Key> skip;  // none: the activation
    // The stage at the other end; of the model's output the one that would follow.
    int64_t stage;
  };
  std::vector<Port> inputs;
  std::vector<Port> outputs;
  // The outputs' numbers in the order in which their gradients are to be added up: as the plain
  // model adds up those of a tensor that is used several times, from its last use to its first.
  std::vector<size_t> gradient_order;
};

// `skips` are those that the routes were created with, in the same order.
Ports ports_of(int64_t stage, const Routes& routes, const std::vector<skip::SkipEdge>& skips);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_PORTS_H_
