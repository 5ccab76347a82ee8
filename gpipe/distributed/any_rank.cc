#include "gpipe/distributed/any_rank.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gpipe/internal/processes/processes.h"

namespace gpipe {

bool any_rank(const World& world, bool here) {
  internal::Processes* const processes = world.processes().get();
  if (processes == nullptr) return here;
  return internal::in_call(processes, [&] {
    const std::vector<std::string> all =
        processes->exchange("any_rank", here ? "1" : "0", /*is_patient=*/false);
    return std::find(all.begin(), all.end(), "1") != all.end();
  });
}

}  // namespace gpipe
