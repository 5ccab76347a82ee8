#include "gpipe/internal/run/run_transport.h"

#include <utility>

namespace gpipe::internal {

RunTransport::RunTransport(ProgramCache::Compiled& compiled, const World& world,
                           const StageMap& stage_map, const std::vector<c10::Device>& devices,
                           Transfers& transfers,
                           std::function<std::string(int64_t stage)> current_layer) {
  if (world.processes() == nullptr) {
    transport_ = &within_.emplace(compiled.program, devices, transfers);
    return;
  }
  std::vector<int64_t> rank_of_worker = stage_map.process_of_worker();
  std::vector<bool> by_host;                   // [worker]
  const c10::Device device = devices.front();  // all stages of this process are on it
  for (int64_t& rank : rank_of_worker) {
    by_host.push_back(is_beyond(world, rank));
    rank = world.rank_of(world.replica(), rank);
  }
  beyond_ = world.processes()->begin_run(compiled.program, rank_of_worker, compiled.messages,
                                         std::move(current_layer), device);
  transport_ = beyond_.get();
  if (!device.is_cpu()) {
    if (beyond_->is_on_device()) by_host.assign(by_host.size(), false);
    transport_ = &staged_.emplace(*beyond_, std::move(by_host), device, transfers);
  }
}

}  // namespace gpipe::internal
