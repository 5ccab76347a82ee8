// explain: the costs of each partition of a cut, and the predicted time of a training step.
//
// Needs no LibTorch and measures nothing: it applies a profile's times to a schedule
// (gpipe/schedule/simulate.h). docs/design/balance.md says what the prediction leaves out.
#ifndef BALANCE_STEP_EXPLAIN_H_
#define BALANCE_STEP_EXPLAIN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "balance/costs/profile.h"
#include "balance/cut/partition.h"
#include "balance/step/machine.h"
#include "gpipe/checkpoint.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::balance {

// A machine, whose links are those between any two partitions, and what it runs.
struct ExplainOptions : Machine {
  // The number of micro-batches of a mini-batch.
  int64_t chunks = 1;
  // [micro-batch] Its rows in units of the profile's rows, above 0. Its times, transfers and
  // activations are taken as proportional to them. Empty: 1 for all.
  std::vector<double> micro_batch_sizes;
  Checkpoint checkpoint = Checkpoint::kExceptLast;
  // The mode of each partition, instead of `checkpoint`. Empty: `checkpoint` holds for all.
  std::vector<Checkpoint> partition_checkpoints;
  // The schedule; stage j is partition j. The halves of split backwards take the times of
  // split_backward() (balance/costs/profile.h). If halves were measured, the input half of the
  // first partition takes no time, as its inputs need no gradient. Null: 1F1B.
  ScheduleGenerator schedule = Schedule::one_f_one_b;

  // [partition] How long its device takes for 1 second of the profile's device. Above 0. Empty: 1
  // for all.
  std::vector<double> slowness;
  // The bytes that training needs for each byte of a parameter: 2 for the parameter and its
  // gradient, more with an optimizer's state. At most kMostParamScale.
  double param_scale = 2;

  // For best_balance(): ranges of layers that must not be separated, as in PartitionOptions.
  std::vector<LayerRange> keep_together;
};

// Times in seconds and sizes in bytes, both for one micro-batch with the profile's rows, unless
// stated otherwise.
struct PartitionExplanation {
  LayerRange layers{};
  double forward = 0;
  double backward = 0;
  double input_gradient = 0;  // the halves of a split backward
  double weight_gradient = 0;
  double recompute = 0;  // mean over the micro-batches; 0 for those that are not checkpointed
  int64_t parameters = 0;
  int64_t sent = 0;  // bytes for later partitions: the activation and the skips
  // The most bytes that the partition holds at a time in a step: parameters x param_scale, buffers,
  // what the micro-batches in flight keep (only inputs if they are checkpointed), one recompute,
  // and the largest workspace of a layer.
  int64_t memory = 0;
  // The parts of `memory`. `fixed`: parameters x param_scale, buffers and workspace. For each
  // micro-batch: what arrives, what is kept in addition for a backward, and the part of both that
  // waits for the second half of a split backward.
  int64_t fixed = 0;
  int64_t received = 0;
  int64_t kept = 0;
  int64_t waiting = 0;
  double busy = 0;  // share of the step in which its worker computes, 0 .. 1
};

// A worker, which may have several partitions.
struct WorkerExplanation {
  int64_t memory = 0;  // bytes of all its partitions together
  double busy = 0;
};

struct Explanation {
  std::string device;                // from the profile
  std::string autocast;              // from the profile
  bool deferred_batch_norm = false;  // from the profile
  int64_t batch_rows = 0;            // rows of a micro-batch
  int64_t chunks = 0;
  int64_t cores = 0;  // how many partitions can compute at the same time; 0: all
  std::vector<PartitionExplanation> partitions;
  std::vector<WorkerExplanation> workers;
  bool splits = false;          // the schedule has split backwards
  bool halves_measured = true;  // if false, each half has half of a whole backward's time

  int64_t binding = 0;  // the partition that is busy longest; the first one if there are several
  double step = 0;      // seconds of forwards and backwards of a mini-batch, without an optimizer
  double reload_wait = 0;  // seconds for which actions wait for what comes back from the host
  double bubble = 0;       // the mean share of the step in which partitions are idle, 0 .. 1
  // seconds of the same micro-batches one after another on the profile's device, without recomputes
  double one_device = 0;
  // one_device / step; 0 if the profile has no times.
  double speed_up = 0;

  // The number of layers of each partition.
  std::vector<int64_t> balance() const;
};

// Throws std::invalid_argument with a message that begins with `prefix` for a machine whose values
// are out of range: cores, bandwidth, latency, overhead, contention, param_scale.
void check_machine(const ExplainOptions& machine, const std::string& prefix);

// Throws std::invalid_argument with a message that begins with `prefix` if the times of a step may
// overflow for some cut and order, because the profile's times are too long or the machine's links
// too slow. `sizes` as micro_batch_sizes, one for each micro-batch.
void check_finite_step(const Profile& profile, const std::vector<double>& sizes,
                       const ExplainOptions& machine, const std::string& prefix);

// Returns the mode of each partition. Throws std::invalid_argument if `options` has modes for
// another number of partitions, and for less than 1 or more than Schedule::kMostCells partitions.
std::vector<Checkpoint> checkpoint_modes(const ExplainOptions& options, int64_t partitions);

// Explains the cut that gives partition j the next balance[j] layers.
//
//   Explanation explanation = explain(profile, {34, 76, 70, 61}, options);
//   explanation.partitions[explanation.binding].busy;
//
// Throws std::invalid_argument for a balance that does not sum up to the profile's layers or has a
// partition without layers, for a profile that cannot have been measured, for options out of their
// ranges, and for a schedule that has another size or cannot run.
Explanation explain(const Profile& profile, const std::vector<int64_t>& balance,
                    const ExplainOptions& options = {});

// The schedule of `options` with offloads that make the memory of its workers low, as
// with_offloads() finds them (gpipe/schedule/offloads.h), by what explain() takes actions to cost
// and cells to hold. With `more_time` 0 no action waits for a copy. `most` as for with_offloads().
// Without host_bandwidth it is the schedule without offloads. Throws as explain() and
// with_offloads() do.
Schedule offloaded_schedule(const Profile& profile, const std::vector<int64_t>& balance,
                            const ExplainOptions& options, double more_time = 0.0,
                            const std::vector<int64_t>& most = {});

// Searches the cut with the shortest predicted step. The search starts from the most even cuts of
// partition() and moves to neighboring cuts while one is faster. Unlike partition() it takes into
// account skips that cross several cuts, transfers during computations, and partitions that
// recompute less than others.
//
// Takes some hundred simulations: half a second for a thousand layers in 8 partitions and 32
// micro-batches, at most a few seconds. Throws as explain() does, and as partition() does for
// `partitions`.
std::vector<int64_t> best_balance(const Profile& profile, int64_t partitions,
                                  const ExplainOptions& options = {});

}  // namespace gpipe::balance

#endif  // BALANCE_STEP_EXPLAIN_H_
