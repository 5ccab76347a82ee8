#include "gpipe/internal/backward/local_backward.h"

#include "gpipe/internal/backward/node_runner.h"

namespace gpipe::internal {
namespace {

class WholeBackward : public NodeRunner<WholeBackward> {
 public:
  using NodeRunner::NodeRunner;
};

}  // namespace

void run_local_backward(const torch::autograd::edge_list& roots,
                        torch::autograd::variable_list& gradients, WalkVisitor& visitor) {
  if (roots.empty()) return;
  WholeBackward backward(visitor);
  backward.find(roots);
  backward.run(roots, gradients);
}

}  // namespace gpipe::internal
