#include "gpipe/internal/replicas/forms.h"

#include <c10/util/StringUtil.h>

#include <cstdint>
#include <functional>

#include "gpipe/internal/processes/processes.h"

namespace gpipe::internal {

std::string form_of(const std::vector<at::Tensor>& tensors) {
  std::string text;
  size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    text += c10::str(tensor.dtype(), tensor.sizes());
    bytes += tensor.nbytes();
  }
  // All processes have the same build, so the same hash.
  return c10::str(tensors.size(), " tensors, ", bytes, " bytes, ", std::hash<std::string>()(text));
}

void check_forms(const World& world, const std::string& what,
                 const std::vector<std::string>& forms) {
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    const int64_t first = rank % world.processes_each();
    const std::string& here = forms.at(static_cast<size_t>(rank));
    const std::string& there = forms.at(static_cast<size_t>(first));
    if (here == there) continue;
    found_by_all(what + " of the replicas differ: " + there + " on rank " + std::to_string(first) +
                 ", and " + here + " on rank " + std::to_string(rank) +
                 "; a layer must register what it has when it is made, and not in its first "
                 "forward, which a replica without rows does not run");
  }
}

void agree_on_forms(const World& world, const std::string& what,
                    const std::vector<at::Tensor>& tensors) {
  check_forms(world, what, exchange_long(*world.processes(), what, form_of(tensors)));
}

}  // namespace gpipe::internal
