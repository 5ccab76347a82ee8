// LostTime: how much of a cluster's time trains a model while its workers fail.
//
// A simulation: failures are drawn, and the time of the cluster is divided into what trained the
// model and what failures cost, by two ways to recover.
#ifndef GPIPE_EXPERIMENTS_INTERRUPTIONS_LOST_TIME_H_
#define GPIPE_EXPERIMENTS_INTERRUPTIONS_LOST_TIME_H_

#include <cstdint>
#include <vector>

namespace gpipe::experiments {

struct Cluster {
  int64_t workers = 1;
  double seconds = 0;
  // The mean time between two failures of a worker. Times are exponential: failures do not depend
  // on each other, nor on what runs.
  double seconds_between_failures = 1;
  // The share of failures that take the worker with the copy of the state, too.
  double takes_partner = 0;
};

struct Interruption {
  double at = 0;  // seconds
  int64_t worker = 0;
  bool takes_partner = false;
};

// The failures of all workers, in order. The same for the same seed.
std::vector<Interruption> draw_interruptions(const Cluster& cluster, uint64_t seed);

// What a run does for and after failures. All times are in seconds.
struct Recovery {
  double step = 1;
  // A copy of the state in the memory of two workers every so many steps, and after each recovery.
  // Training stands still meanwhile. 0: none is made, and each failure is recovered from on disk.
  int64_t snapshot_every = 0;
  double snapshot = 0;
  double recovery = 0;     // from a failure to the restored state, from memory
  int64_t save_every = 1;  // steps between two checkpoints on disk
  double save = 0;         // how long training stands still for one
  double restart = 0;      // from a failure to the restored state, from disk
};

// Where the time of a run went. The parts add up to the time of the cluster.
struct LostTime {
  double training = 0;    // steps that count
  double repeated = 0;    // work that was lost, and the unfinished step at the end
  double recovering = 0;  // from memory or from disk
  double copying = 0;     // snapshots
  double saving = 0;      // checkpoints
  int64_t interruptions = 0;
  int64_t from_disk = 0;  // recoveries from disk
};

// Plays a run of `cluster` through its failures. A failure during a recovery begins it anew. The
// state of each worker is held by itself and by the next worker. If both have failed since the last
// complete snapshot, or takes_partner says so, the run goes on from the last checkpoint.
LostTime play(const Cluster& cluster, const Recovery& recovery,
              const std::vector<Interruption>& interruptions);

// Young's interval: the seconds between two copies that lose the least time, nearly, if a copy
// takes `copy` seconds and the whole cluster fails every `between_failures` seconds.
double youngs_interval(double copy, double between_failures);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_INTERRUPTIONS_LOST_TIME_H_
