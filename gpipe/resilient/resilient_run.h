// ResilientRun: a training loop over processes that goes on when some of them die.
#ifndef GPIPE_RESILIENT_RESILIENT_RUN_H_
#define GPIPE_RESILIENT_RESILIENT_RUN_H_

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/optim/optimizer.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/distributed/control/failure.h"
#include "gpipe/gpipe.h"
#include "gpipe/resilient/meet_again.h"
#include "gpipe/saving/snapshot.h"
#include "gpipe/world.h"

namespace gpipe {

struct ResilientOptions {
  // The steps of the run: 0, 1, ... steps - 1.
  int64_t steps = 0;
  // The state is copied to the memory of two processes before the first step, and before each step
  // whose number is a multiple of this one.
  int64_t snapshot_every = 10;
  // The folder of a checkpoint (gpipe/saving/saving.h), written before the first step,
  // before each step whose number is a multiple of `save_every`, and at the end. A run that begins
  // goes on from a checkpoint that is there, as does a run whose state in memory is lost, or is
  // older. It must be on a file system that can exchange two folders at once (ext4, XFS, Btrfs and
  // tmpfs can, NFS cannot), which each process tries when it makes the ResilientRun. Empty: no
  // checkpoint.
  std::string path;
  int64_t save_every = 100;
  // How often a run goes on after deaths without a finished step between them.
  int64_t max_recoveries = 3;
  // A world has a multiple of so many processes, say of the replicas, if so many are left. Those
  // that are left over wait as spares for the next death.
  int64_t multiple_of = 1;
  // For a monitor: called in each process with what it does next: "meet", "make", "restore",
  // "snapshot", "save", "step" or "end".
  std::function<void(const char* phase)> on_phase = nullptr;
  // After a death, a process that does not come to the next meeting within `world.silence_limit` is
  // left out (WorldIsOver). So give more time than the longest layer takes, and the longest pause
  // between two calls of a step. What loads slowly belongs in make(), where the others wait for
  // `world.call_limit`; for a process that was started again, and has not come to run() yet, they
  // wait for silence_limit, or 20 s if that is more.
  WorldOptions world;
};

// What the user's function makes for each world. The closures may keep the other members.
struct ResilientParts {
  GPipe pipe{nullptr};
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  // If steps change more than the pipeline and the optimizer, e.g. a scheduler, or a position in
  // the data that does not follow from the step: `keep` returns its state as UTF-8 text, the same
  // on all ranks, and `put_back` restores it from such a text, when pipeline and optimizer are
  // restored. Learning rates that it changes, as by stepping a scheduler, are restored behind it.
  std::function<std::string()> keep = nullptr;
  std::function<void(const std::string& kept)> put_back = nullptr;
};

// What a run has been through, in this process.
struct ResilientCounts {
  int64_t recoveries = 0;
  int64_t repeated_steps = 0;
  double recovery_seconds = 0;  // from the exception to the restored state, of all recoveries
  int64_t snapshots = 0;
  double snapshot_seconds = 0;  // of all snapshots
  int64_t snapshot_bytes = 0;   // host memory of the last snapshot
  // The host memory of this process for snapshots, as planned at the beginning of its last world:
  // for one, and the next while that is taken.
  int64_t planned_bytes = 0;
};

// Trains step by step. If processes die, the others meet again, with those that the launcher starts
// instead (//gpipe/distributed:launch, --restarts), make everything anew, get the state from the
// memory of those that hold it, and repeat the steps since the last snapshot. The bits of the run
// are then those of a run that nothing has disturbed, also in another cut or over fewer processes,
// as far as docs/guide/17a-exceptions.md lets another cut have the same bits.
//
// Without deaths it is a loop, plus the snapshots, in host memory that is planned before the first
// step. Without a launcher that starts processes again,
// and in a process that is alone, it takes no snapshots.
//
// Requirements: all processes make the same calls. Chunks, groups and cpu_threads_per_stage are
// given to GPipeOptions, the same for each world; a world that differs in them is refused. (If
// groups are not given, there are as many as replicas, and a death may change that.) A step's data
// follow from its number or from ResilientParts::keep. Gradients are not kept, so a body that
// accumulates them does so within one step, and not over several. No copy of a world, a pipeline or
// an optimizer is kept outside of ResilientParts. `make` makes the model anew: one that returns a
// parameter or buffer of the world before is refused, since that has been changed, or has no values
// any more. (A frozen one that has its values may be kept.) A generator that a layer gives to its
// operators is neither copied nor saved, so it is refused, in the step that first draws from what a
// step has left behind; one that `body` seeds for each step is not. A program makes one run.
//
// An exception of the user's ends the run on all ranks, as without this class: only what dies, or
// is silent for longer than WorldOptions::silence_limit, is recovered from.
//
// Example:
//   gpipe::ResilientOptions options;
//   options.steps = 200;
//   gpipe::ResilientRun run(options);
//   run.run([](const gpipe::World& world) { return make(world); },
//           [&](gpipe::ResilientParts& parts, int64_t step) {
//             const double loss = train(parts.pipe, *parts.optimizer, step);
//             run.log("step " + std::to_string(step) + " loss " + std::to_string(loss));
//           });
class ResilientRun {
 public:
  using Make = std::function<ResilientParts(const World& world)>;
  using Body = std::function<void(ResilientParts& parts, int64_t step)>;
  using Meet = std::function<Meeting(const WorldOptions& options, const MeetAgainOptions& again)>;

  // Throws c10::ValueError for a negative number of steps or recoveries, and for intervals below 1;
  // otherwise, for `path`, what check_checkpoint_path does, and std::runtime_error if a checkpoint
  // could not be replaced there.
  explicit ResilientRun(ResilientOptions options);
  // For tests: with another way to meet; `is_resilient`: whether that can be done again.
  ResilientRun(ResilientOptions options, Meet meet, bool is_resilient);

  // Called once. Returns when all ranks have made all steps. `make` is called once for each world,
  // each time with the state that the CPU's generator has now, so the program may seed here or in
  // `make`. `body` is called for each step: again for a step that is repeated, and then its last
  // call counts. `end`: called after the last step, with the number of steps, and again after a
  // death in it; for what needs the trained model, as its parameter_hash().
  //
  // Throws what a user's function throws; DistributedFailure if a rank threw, or after more than
  // `max_recoveries` deaths in a row; WorldIsOver in a process that the others have gone on
  // without; std::runtime_error if a state is lost, and no checkpoint is there, or if a machine
  // lacks the memory for snapshots; c10::NotImplementedError, before the first step, for LBFGS and,
  // where states are copied or saved, for another optimizer that cannot be saved, and later for a
  // layer's own generator; c10::ValueError for parts that do not fit, or if a process that was
  // started again makes another of the program's runs than the rest; std::logic_error if it is
  // called again, or if the World of the world before is kept.
  void run(const Make& make, const Body& body, const Body& end = nullptr);

  // Prints a line on rank 0, once for each step however often the step is repeated. Call it on all
  // ranks alike, in `body` or `end`. If rank 0 dies, the lines of two steps may come twice.
  void log(const std::string& text);

  const ResilientCounts& counts() const { return counts_; }

 private:
  struct Place {  // the lines that were printed
    int64_t step = -1;
    int64_t line = 0;
    friend bool operator<(const Place& a, const Place& b) {
      return std::tie(a.step, a.line) < std::tie(b.step, b.line);
    }
  };

  bool takes_snapshots() const;
  // Meets the others, until they are a multiple of ResilientOptions::multiple_of.
  void meet_others();
  // The processes from rank `staying` on give the others what only they hold.
  void hand_over(int64_t staying);
  // Throws c10::ValueError if `parts_` cannot be trained and restored.
  void check_parts();
  // Throws c10::NotImplementedError, for the whole run, if a layer has drawn from a generator whose
  // state is neither copied nor saved. `layer`: as CarriedGenerators::layer().
  void check_generators(std::optional<int64_t> layer) const;
  // Runs in one world, until the run ends or a failure is thrown.
  void run_in_world(const Make& make, const Body& body, const Body& end);
  // Restores what the processes hold together. Returns the step to begin with.
  int64_t restore();
  void snapshot(int64_t step);
  // Prints the planned memory. Throws on all ranks, in the first world, if a machine lacks it.
  void check_memory();
  void save(int64_t step);
  Progress progress(int64_t step) const;
  // What ResilientParts::keep returns; empty without it. Throws c10::ValueError unless it is UTF-8.
  std::string kept() const;
  // Restores what a snapshot or checkpoint has beside the states of model and optimizer.
  void take(const Progress& progress);
  // A text of the settings on which the bits depend beside the layout.
  std::string form() const;
  // The last line that rank 0 has printed for sure, as far as this process knows.
  Place surely_printed() const;
  void say(const std::string& text) const;
  void enter(const char* phase) const;

  const ResilientOptions options_;
  const Meet meet_;
  const bool is_resilient_;
  World world_;
  int64_t generation_ = 0;  // of `world_`, or of the one in which some were left over
  ResilientParts parts_;
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  // A parameter or buffer of the last world's model, to recognize it.
  struct Former {
    WeakTensor tensor;
    uint32_t version = 0;  // when that world's state was restored
    bool is_changed = false;
  };
  // Calls function(former, tensor) for each that still exists.
  template <typename Function>
  void for_each_kept(Function function);

  std::vector<Former> former_;
  // The last snapshot that is complete on all processes, and perhaps a newer one that may be
  // complete on some only.
  std::vector<Snapshot> held_;
  at::Tensor generator_;                      // the state of the CPU's generator when run() began
  std::optional<std::string> kept_at_first_;  // what ResilientParts::keep returned before step 0
  Place printed_;
  int64_t step_ = 0;  // the number of the step that is being made
  int64_t line_ = 0;  // how many lines were logged in that step
  int64_t furthest_ = 0;
  int64_t recoveries_in_a_row_ = 0;
  bool has_run_ = false;
  int64_t former_runs_ = 0;                 // that this process began before this one
  bool was_rank_0_ = false;                 // in the world that has last told its lines
  bool is_saved_ = false;                   // whether there is a checkpoint at `path`
  int64_t saved_ = -1;                      // the step of that checkpoint; -1: not known
  std::string lost_;                        // why the former world ended, for a line
  std::vector<distributed::Fault> faults_;  // that have ended the former world
  ResilientCounts counts_;
};

// The processes as replicas of one pipeline: as many as divide both their number and `most`, so of
// four at most, six processes are two replicas, and three are one. For make(), with
// ResilientOptions::multiple_of. Throws std::invalid_argument if `most` is below 1.
World as_replicas(const World& world, int64_t most);

namespace internal {

// How many runs this process has begun. A test that plays a process that was started again sets it.
std::atomic<int64_t>& runs_of_process();

// The memory for snapshots that a rank will take beside what it has taken, and what its machine has
// left (0: not known), in bytes.
struct MemoryOfRank {
  std::string host;
  int64_t to_come = 0;
  int64_t available = 0;
};

// A sentence about a machine that lacks memory; empty if there is none. `ranks`: of all ranks.
std::string lack_of_memory(const std::vector<MemoryOfRank>& ranks);

}  // namespace internal
}  // namespace gpipe

#endif  // GPIPE_RESILIENT_RESILIENT_RUN_H_
