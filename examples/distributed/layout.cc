#include "examples/distributed/layout.h"

#include <cstddef>
#include <string>

#include "command/wrong_value.h"

namespace distributed {

gpipe::World world_of_replicas(const gpipe::World& processes, int64_t replicas) {
  if (replicas < 1 || processes.size() % replicas != 0) {
    const std::string number = std::to_string(replicas), size = std::to_string(processes.size());
    throw gpipe::command::wrong_value(
        "replicas", number,
        "each has as many processes, and there " +
            (processes.size() == 1 ? "is 1 process" : "are " + size + " processes") +
            (replicas < 1
                 ? "; give 1 or more"
                 : "; start " + number +
                       " or a multiple of that (//gpipe/distributed:launch -- --processes=" +
                       number + "), or give another number of replicas"));
  }
  return processes.grid(replicas, processes.size() / replicas);
}

std::vector<int64_t> even_balance(int64_t layers, int64_t stages) {
  if (stages < 1 || stages > layers) {
    throw gpipe::command::wrong_value("stages", stages,
                                      "the model has " + std::to_string(layers) + " layers");
  }
  std::vector<int64_t> balance(static_cast<size_t>(stages), layers / stages);
  for (int64_t k = 0; k < layers % stages; ++k) ++balance[static_cast<size_t>(k)];
  return balance;
}

gpipe::Placement placement_over(const gpipe::World& world, const gpipe::ScheduleChoice& schedule,
                                int64_t stages) {
  gpipe::Placement placement = schedule.placement(stages);
  if (world.processes_each() == 1) return placement;
  if (placement.workers() < world.processes_each()) {
    throw gpipe::command::wrong_value("stages", stages,
                                      "with --schedule=" + schedule.name + " they are for " +
                                          std::to_string(placement.workers()) +
                                          (placement.workers() == 1 ? " process" : " processes") +
                                          ", and there are " +
                                          std::to_string(world.processes_each()) +
                                          (world.replicas() > 1 ? " in each replica" : "") +
                                          "; give more stages, or start fewer processes");
  }
  std::vector<int64_t> processes;
  for (int64_t worker = 0; worker < placement.workers(); ++worker) {
    processes.push_back(worker * world.processes_each() / placement.workers());
  }
  return placement.processes(processes);
}

}  // namespace distributed
