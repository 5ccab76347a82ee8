// Snapshot, take_snapshot, load_snapshot: a training run's state in memory, from which it goes on
// under any balance, also if some processes are lost.
#ifndef GPIPE_SAVING_SNAPSHOT_H_
#define GPIPE_SAVING_SNAPSHOT_H_

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/saving/checkpoint_files.h"
#include "gpipe/saving/saving.h"

namespace gpipe {

// The files of a checkpoint (saving.h) in memory, byte for byte those that save_checkpoint would
// write. Over processes it is what this process holds of them: the files of its own layers, and
// those of its partner's. A value type, whose copies share memory.
//
// Thread-safety: as a const std::vector.
class Snapshot {
 public:
  Snapshot() = default;
  // For the library's own use.
  explicit Snapshot(internal::CheckpointImages images) : images_(std::move(images)) {}

  bool empty() const { return images_.empty(); }
  // Host memory. A copy counts again.
  int64_t bytes() const;
  // How far the run was. Requirement: not empty.
  Progress progress() const;

  // The names of the files that are here, in order, such as "model-00002-of-00004.safetensors".
  std::vector<std::string> files() const;
  // The names of all files of the model and the optimizer, here or elsewhere; empty if empty().
  std::vector<std::string> all_files() const;
  // A text that two snapshots have in common only if they have the same values in the same cut.
  std::string fingerprint() const;

  const internal::CheckpointImages& images() const { return images_; }

 private:
  internal::CheckpointImages images_;
};

// Copies what save_checkpoint would write. Over processes all of them call this. What no other
// replica has then goes to a partner, too: to another machine if the machines have equally many
// processes, otherwise to the next rank. So a state is lost only if both of its holders are lost.
// It returns on all processes or throws on all.
//
// Takes memory for a copy of this process's parameters, buffers and states, over processes for two
// (one over replicas, unless a ZeroOptimizer keeps states once).
//
// Throws as save_checkpoint does, except for what concerns the disk; over replicas
// std::runtime_error if two replicas have different values.
Snapshot take_snapshot(GPipe& pipe, torch::optim::Optimizer& optimizer, const Progress& progress);

// As load_checkpoint, with its checks and errors, from memory. Over processes all of them call
// this, each with what it holds of one snapshot, which is nothing in a new process. What a process
// needs comes from one that has it.
//
// Throws c10::ValueError on all processes if nobody has some file, which it names.
Progress load_snapshot(GPipe& pipe, torch::optim::Optimizer& optimizer, const Snapshot& held);

namespace internal {

// Called when this process has all that it is to hold. `planned_bytes`: the memory of such a
// snapshot when the optimizer has the states of all parameters.
using SnapshotArrived = std::function<void(Snapshot snapshot, int64_t planned_bytes)>;

// As take_snapshot. `arrived` is called before any process returns: a process that throws may hold
// the snapshot, and others may have returned.
void take_snapshot(GPipe& pipe, torch::optim::Optimizer& optimizer, const Progress& progress,
                   const SnapshotArrived& arrived);

// Gives the files that only processes hold which leave to those that stay, the ranks below
// `staying`. All processes of the world call this, each with what it holds of one snapshot. Returns
// what this process holds then. Requirements: several processes, which hold all files together.
Snapshot hand_over(const World& world, const Snapshot& held, int64_t staying);

// The number of ranks from each process to its partner: the smallest for which each partner is on
// another host; 1 if there is none. `hosts`: [rank].
int64_t partner_distance(const std::vector<std::string>& hosts);

}  // namespace internal
}  // namespace gpipe

#endif  // GPIPE_SAVING_SNAPSHOT_H_
