// WorldRanks: for tests, processes that are connected as a World.
#ifndef GPIPE_TESTING_PROCESSES_WORLD_RANKS_H_
#define GPIPE_TESTING_PROCESSES_WORLD_RANKS_H_

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "gpipe/distributed/control/failure.h"
#include "gpipe/distributed/sockets/master_port.h"
#include "gpipe/testing/processes/rank_processes.h"
#include "gpipe/world.h"

namespace gpipe::distributed {

// Each process connects as if a launcher had started it, with one thread per operator, and runs
// `main`.
//
// Requirements: the same as for RankProcesses.
class WorldRanks {
 public:
  using Say = RankProcesses::Say;
  using Main = std::function<void(const World& world, const Say& say)>;

  WorldRanks(int64_t size, const Main& main, const WorldOptions& options = quick())
      : size_(size), ranks_(size, [&](int64_t rank, const Say& say) {
          become(rank, size, port_.number());
          main(World::from_environment(options), say);
        }) {}

  RankProcesses& operator*() { return ranks_; }
  RankProcesses* operator->() { return &ranks_; }

  // The next line of each rank.
  std::vector<std::string> lines() {
    std::vector<std::string> lines;
    for (int64_t rank = 0; rank < size_; ++rank) lines.push_back(ranks_.next(rank));
    return lines;
  }
  // Expects that each rank ends by itself, with status 0.
  void expect_ends() {
    for (int64_t rank = 0; rank < size_; ++rank) EXPECT_TRUE(ranks_.ends(rank)) << rank;
  }

  // Makes this process that rank, as if a launcher had started it, with one thread per operator.
  static void become(int64_t rank, int64_t size, int64_t port) {
    set("RANK", rank);
    set("WORLD_SIZE", size);
    set("LOCAL_RANK", rank);
    set("LOCAL_WORLD_SIZE", size);
    set("MASTER_PORT", port);
    setenv("MASTER_ADDR", "127.0.0.1", /*overwrite=*/1);
    at::set_num_threads(1);
  }

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

  int64_t size_;
  MasterPort port_;
  RankProcesses ranks_;
};

// The result of a call as text: what it returns, or "failure: ...", "value error: ..." and so on if
// it throws.
inline std::string outcome(const std::function<std::string()>& call) {
  try {
    return call();
  } catch (const DistributedFailure& failure) {
    return std::string("failure: ") + failure.what();
  } catch (const c10::ValueError& error) {
    return std::string("value error: ") + error.what_without_backtrace();
  } catch (const c10::Error& error) {
    return std::string("error: ") + error.what_without_backtrace();
  } catch (const std::exception& error) {
    return std::string("exception: ") + error.what();
  }
}

}  // namespace gpipe::distributed

#endif  // GPIPE_TESTING_PROCESSES_WORLD_RANKS_H_
