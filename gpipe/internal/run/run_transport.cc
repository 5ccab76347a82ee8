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
  std::vector<bool> is_beyond;                 // [worker]
  const c10::Device device = devices.front();  // all stages of this process are on it
  for (int64_t& rank : rank_of_worker) {
    rank = world.rank_of(world.replica(), rank);
    is_beyond.push_back(rank != world.rank() || world.processes()->copies_within());
  }
  beyond_ = world.processes()->begin_run(compiled.program, rank_of_worker, compiled.messages,
                                         std::move(current_layer), device);
  transport_ = beyond_.get();
  if (!device.is_cpu()) {
    if (beyond_->is_on_device()) is_beyond.assign(is_beyond.size(), false);
    transport_ = &staged_.emplace(*beyond_, std::move(is_beyond), device, transfers);
  }
}

}  // namespace gpipe::internal
