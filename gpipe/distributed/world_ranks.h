// WorldRanks: for tests, processes that are connected as a World.
#ifndef GPIPE_DISTRIBUTED_WORLD_RANKS_H_
#define GPIPE_DISTRIBUTED_WORLD_RANKS_H_

#include <ATen/Parallel.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>

#include "gpipe/distributed/master_port.h"
#include "gpipe/distributed/rank_processes.h"
#include "gpipe/world.h"

namespace gpipe::distributed {

// Each process connects, as if a launcher had started it, and runs `main`. One thread an operator.
//
// Requirements: as RankProcesses.
class WorldRanks {
 public:
  using Say = RankProcesses::Say;
  using Main = std::function<void(const World& world, const Say& say)>;

  WorldRanks(int64_t size, const Main& main, const WorldOptions& options = quick())
      : ranks_(size, [&](int64_t rank, const Say& say) {
          set("RANK", rank);
          set("WORLD_SIZE", size);
          set("LOCAL_RANK", rank);
          set("LOCAL_WORLD_SIZE", size);
          set("MASTER_PORT", port_.number());
          setenv("MASTER_ADDR", "127.0.0.1", /*overwrite=*/1);
          at::set_num_threads(1);
          main(World::from_environment(options), say);
        }) {}

  RankProcesses& operator*() { return ranks_; }
  RankProcesses* operator->() { return &ranks_; }

  static WorldOptions quick() {
    WorldOptions options;
    options.rendezvous_limit = std::chrono::seconds(60);
    options.announce = false;
    return options;
  }

 private:
  static void set(const char* name, int64_t value) {
    setenv(name, std::to_string(value).c_str(), /*overwrite=*/1);
  }

  MasterPort port_;
  RankProcesses ranks_;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_WORLD_RANKS_H_
