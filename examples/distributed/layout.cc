#include "examples/distributed/layout.h"

#include <cstddef>
#include <stdexcept>

#include "gpipe/schedule/named_schedule.h"

namespace distributed {

std::vector<int64_t> even_balance(int64_t layers, int64_t stages) {
  if (stages < 1 || stages > layers) {
    throw std::invalid_argument("--stages=" + std::to_string(stages) + ": the model has " +
                                std::to_string(layers) + " layers");
  }
  std::vector<int64_t> balance(static_cast<size_t>(stages), layers / stages);
  for (int64_t k = 0; k < layers % stages; ++k) ++balance[static_cast<size_t>(k)];
  return balance;
}

gpipe::Placement placement_over(const gpipe::World& world, const std::string& schedule,
                                int64_t stages) {
  gpipe::Placement placement = gpipe::placement_by_name(schedule, stages);
  if (world.processes_each() == 1) return placement;
  std::vector<int64_t> processes;
  for (int64_t worker = 0; worker < placement.workers(); ++worker) {
    processes.push_back(worker * world.processes_each() / placement.workers());
  }
  return placement.processes(processes);
}

}  // namespace distributed
