// LayersResult: what the layers of a cell leave when they have run.
#ifndef GPIPE_INTERNAL_BOUNDARY_LAYERS_RESULT_H_
#define GPIPE_INTERNAL_BOUNDARY_LAYERS_RESULT_H_

#include <c10/util/SmallVector.h>

#include "gpipe/internal/boundary/leaving_copies.h"
#include "gpipe/internal/boundary/ports.h"
#include "gpipe/internal/cell/cell.h"
#include "gpipe/internal/tensors/value.h"

namespace gpipe::internal {

struct LayersResult {
  c10::SmallVector<Value, 1> outputs;  // [port]
  CellGraph graph;
  // Memory of inputs that are read_only, shared or constant (see Item). The pointers are weak, so
  // the memory can be freed, but no other storage gets the same address.
  WeakStorages read_only;
  WeakStorages shared;
  WeakStorages constant;
};

// Adds the outputs to the result's graph, in the order in which their gradients are added up.
void add_outputs(const Ports& ports, LayersResult& result);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BOUNDARY_LAYERS_RESULT_H_
