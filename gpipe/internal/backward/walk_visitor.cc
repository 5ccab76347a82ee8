#include "gpipe/internal/backward/walk_visitor.h"

namespace gpipe::internal {

at::Tensor* WalkVisitor::discarded() {
  static at::Tensor sink;
  return &sink;
}

}  // namespace gpipe::internal
