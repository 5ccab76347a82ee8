// explain: what a cut costs each partition, and how long a training step is predicted to take.
//
// It knows no LibTorch and measures nothing: it puts a profile's times on a schedule
// (gpipe/schedule/simulate.h). docs/design/balance.md says what the prediction leaves out.
#ifndef BALANCE_STEP_EXPLAIN_H_
#define BALANCE_STEP_EXPLAIN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "balance/costs/profile.h"
#include "balance/cut/partition.h"
#include "gpipe/checkpoint.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::balance {

struct ExplainOptions {
  // Micro-batches of a mini-batch, each with as many rows as the profile's, or:
  int64_t chunks = 1;
  // By micro-batch: its rows in units of the profile's, above 0. Its times, transfers and
  // activations are taken as proportional to them. Empty: 1 for all.
  std::vector<double> micro_batch_sizes;
  Checkpoint checkpoint = Checkpoint::kExceptLast;
  // The mode of each partition. Replaces `checkpoint`. Empty: that holds for all.
  std::vector<Checkpoint> partition_checkpoints;
  // Stage j is partition j. The halves of split backwards take what split_backward()
  // (balance/costs/profile.h) says; of the first partition, whose inputs need no gradient, the half
  // of inputs takes nothing if halves were measured. Empty: 1F1B.
  ScheduleGenerator schedule = Schedule::one_f_one_b;

  // By partition: how long its device takes for what the profile's device does in 1. Above 0.
  // Empty: 1 for all.
  std::vector<double> slowness;
  // Of the link between any two partitions. 0 bytes per second: transfers take only their latency.
  double bandwidth = 0;  // bytes per second
  double latency = 0;    // seconds per transfer
  // Seconds that every action takes beside its layers.
  double overhead = 0;
  // How many partitions can compute at once, as on few cores. 0: all.
  int64_t cores = 0;
  // How many times as long an action takes while others run, which shares caches and memory with
  // them. At least 1.
  double contention = 1;

  // What a parameter takes in bytes, in units of its own size: 2 for itself and its gradient, more
  // with an optimizer's state. At most kMostParamScale.
  double param_scale = 2;

  // For best_balance(): layers of which no two neighbors may be separated, as in PartitionOptions.
  std::vector<LayerRange> keep_together;
};

// Times in seconds, sizes in bytes, both of one micro-batch with the profile's rows unless said
// otherwise.
struct PartitionExplanation {
  LayerRange layers{};
  double forward = 0;
  double backward = 0;
  double input_gradient = 0;  // the halves of a split backward
  double weight_gradient = 0;
  double recompute = 0;  // the mean over the micro-batches; those not checkpointed count 0
  int64_t parameters = 0;
  int64_t sent = 0;  // to later partitions: the activation and the skips
  // Of a whole step: the most that the partition holds at a time: parameters x param_scale,
  // buffers, what the micro-batches in flight keep (inputs only where they are checkpointed), one
  // recompute, the largest workspace of a layer.
  int64_t memory = 0;
  // The parts of that: parameters with what an optimizer keeps, buffers and workspace, in any case;
  // of a micro-batch what arrives, what is kept beside it for a backward, and what of both waits
  // for the second half of a split one.
  int64_t fixed = 0;
  int64_t received = 0;
  int64_t kept = 0;
  int64_t waiting = 0;
  double busy = 0;  // share of the step in which its worker computes, 0 .. 1
};

// A worker, which may have several partitions.
struct WorkerExplanation {
  int64_t memory = 0;  // as a partition's, of all of its partitions together
  double busy = 0;
};

struct Explanation {
  std::string device;                // the profile's
  std::string autocast;              // the profile's
  bool deferred_batch_norm = false;  // the profile's
  int64_t batch_rows = 0;            // of a micro-batch
  int64_t chunks = 0;
  int64_t cores = 0;  // how many partitions can compute at once; 0: all
  std::vector<PartitionExplanation> partitions;
  std::vector<WorkerExplanation> workers;
  bool splits = false;          // the schedule has split backwards
  bool halves_measured = true;  // if not, half of a whole backward's time is taken for each

  int64_t binding = 0;    // the partition that is busy longest: the first of several
  double step = 0;        // seconds of forwards and backwards of a mini-batch, without an optimizer
  double bubble = 0;      // the mean share of the step in which partitions are idle, 0 .. 1
  double one_device = 0;  // seconds of the same micro-batches one after another on the profile's
                          // device, with nothing recomputed
  // one_device / step; 0 if the profile has no times.
  double speed_up = 0;

  // How many layers each partition has.
  std::vector<int64_t> balance() const;
};

// Throws std::invalid_argument that begins with `prefix` for a machine that is out of range: cores,
// bandwidth, latency, overhead, contention, param_scale.
void check_machine(const ExplainOptions& machine, const std::string& prefix);

// Throws std::invalid_argument that begins with `prefix` if the times of a step are no finite
// numbers however its layers are cut and ordered, because the profile's times are too long, or the
// machine's links too slow. `sizes` as micro_batch_sizes, one for each micro-batch.
void check_finite_step(const Profile& profile, const std::vector<double>& sizes,
                       const ExplainOptions& machine, const std::string& prefix);

// The mode of each partition. Throws std::invalid_argument if the options have modes for another
// number of them, and for fewer than one or more than Schedule::kMostCells.
std::vector<Checkpoint> checkpoint_modes(const ExplainOptions& options, int64_t partitions);

// Explains the cut that gives partition j the next balance[j] layers.
//
//   Explanation explanation = explain(profile, {34, 76, 70, 61}, options);
//   explanation.partitions[explanation.binding].busy;
//
// Throws std::invalid_argument for a balance that does not sum up to the profile's layers or has a
// partition without layers, for a profile that cannot have been measured, for options out of their
// ranges, and for a schedule of another size or that cannot run.
Explanation explain(const Profile& profile, const std::vector<int64_t>& balance,
                    const ExplainOptions& options = {});

// The cut with the least predicted step that was found: the most even ones that partition() finds,
// and from each of them the neighboring cuts for as long as one is faster. Unlike partition() it
// sees skips that cross several cuts, transfers beside computations, and partitions that recompute
// less than others.
//
// Takes some hundred simulations: half a second for a thousand layers in 8 partitions and 32
// micro-batches, some seconds at most. Throws as explain() does, and as partition() does for
// `partitions`.
std::vector<int64_t> best_balance(const Profile& profile, int64_t partitions,
                                  const ExplainOptions& options = {});

}  // namespace gpipe::balance

#endif  // BALANCE_STEP_EXPLAIN_H_
