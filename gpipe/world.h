// World: the processes that a pipeline runs over.
//
// This header does not know how processes are connected. from_environment() connects them over
// c10d; whatever depends on //gpipe has it.
#ifndef GPIPE_WORLD_H_
#define GPIPE_WORLD_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

namespace gpipe {

namespace internal {
class Processes;
}

// How processes find and watch each other.
struct WorldOptions {
  // How long processes that have started wait for those that have not.
  std::chrono::milliseconds rendezvous_limit = std::chrono::minutes(5);
  // How long a process may be silent before the others give it up. A process that computes is not
  // silent: a thread of its own answers for it.
  std::chrono::milliseconds silence_limit = std::chrono::seconds(30);
  // How long processes that have reached a call wait for one that is alive and does not reach it.
  std::chrono::milliseconds call_limit = std::chrono::minutes(5);
  // Whether rank 0 writes one line about what was recognized to the standard error.
  bool announce = true;
};

// Rows [begin, end) of a mini-batch.
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  friend bool operator==(const RowRange& a, const RowRange& b) {
    return a.begin == b.begin && a.end == b.end;
  }
  friend bool operator!=(const RowRange& a, const RowRange& b) { return !(a == b); }
};

// The processes of a run: a value, whose copies mean the same processes. A process leaves the run
// when its last copy is destroyed, including those that pipelines keep.
//
// Example, in each of four processes that torchrun, mpirun, srun or //gpipe/distributed:launch has
// started:
//   auto world = gpipe::World::from_environment();
//   gpipe::GPipe pipe(model, gpipe::GPipeOptions({3, 3, 2, 2}).chunks(8).world(world));
//   auto result = pipe->step(inputs, targets, loss_fn);  // the same loss in all of them
class World {
 public:
  // A world of this process alone.
  World() = default;

  // Connects the processes that a launcher has started; without a launcher, this process alone. All
  // processes must call this equally often.
  //
  // Throws std::runtime_error that names the processes which did not come within the limit,
  // std::invalid_argument for environment variables that do not fit together or if the processes
  // have different builds of LibTorch or numbers of threads per operator,
  // gpipe::distributed::DistributedFailure if a process fails meanwhile.
  static World from_environment(const WorldOptions& options = {});

  // The same processes, as replicas of one pipeline: each replica is a pipeline over `processes`
  // processes and gets its own rows of each mini-batch, and the gradients are added up over all
  // replicas. The first `processes` ranks are replica 0, and so on. Throws std::invalid_argument if
  // there are not exactly replicas * processes of them, or if one of the two is below 1.
  //
  // Example, with eight processes: two replicas, each of a pipeline over four
  //   auto world = gpipe::World::from_environment().grid(2, 4);
  //   gpipe::GPipe pipe(model, gpipe::GPipeOptions({3, 3, 2, 2}).chunks(8).world(world));
  //   const gpipe::RowRange rows = world.rows(batch.size(0), pipe->chunks());
  //   pipe->step({batch.slice(0, rows.begin, rows.end)}, ...);
  World grid(int64_t replicas, int64_t processes) const;

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }
  // The number of this process among those of its machine, from 0, as its launcher gives it
  // (LOCAL_RANK of torchrun and our launcher, OMPI_COMM_WORLD_LOCAL_RANK, MPI_LOCALRANKID,
  // SLURM_LOCALID): for its device, c10::Device(c10::kCUDA, world.local_rank()).
  // from_environment() throws if there are several processes and one lacks it. 0 if this process
  // is alone.
  int64_t local_rank() const { return local_rank_; }
  int64_t replicas() const { return replicas_; }
  // The number of processes of each replica.
  int64_t processes_each() const { return size_ / replicas_; }
  int64_t replica() const { return rank_ / processes_each(); }
  int64_t process() const { return rank_ % processes_each(); }
  int64_t rank_of(int64_t replica, int64_t process) const {
    return replica * processes_each() + process;
  }

  // The rows that this replica must be given of a mini-batch of `global_rows` rows, which all
  // replicas together cut into `chunks`: the rows of its own chunks. Each chunk has rows / chunks
  // rows, rounded up, so the last replicas may get fewer rows, or none. Throws
  // std::invalid_argument if `chunks` is not a multiple of the replicas, or for fewer than 0 rows
  // or 1 chunk.
  RowRange rows(int64_t global_rows, int64_t chunks) const;

  // For the library's own use. `processes`: null if this process is alone.
  World(std::shared_ptr<internal::Processes> processes, int64_t rank, int64_t size,
        int64_t local_rank = 0)
      : processes_(std::move(processes)), rank_(rank), size_(size), local_rank_(local_rank) {}
  const std::shared_ptr<internal::Processes>& processes() const { return processes_; }

 private:
  std::shared_ptr<internal::Processes> processes_;
  int64_t rank_ = 0;
  int64_t size_ = 1;
  int64_t local_rank_ = 0;
  int64_t replicas_ = 1;
};

}  // namespace gpipe

#endif  // GPIPE_WORLD_H_
