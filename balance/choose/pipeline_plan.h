// PipelinePlan: how to train a model on given devices: everything that a pipeline and its steps
// must be told, and the predictions for it.
//
// Needs no LibTorch. balance/choose/plan.h finds a plan, balance/choose/plan_options.h turns it
// into the options of a pipeline.
#ifndef BALANCE_CHOOSE_PIPELINE_PLAN_H_
#define BALANCE_CHOOSE_PIPELINE_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gpipe/checkpoint.h"
#include "gpipe/placement.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::balance {

// The memory of a device in a plan, in bytes.
struct PlannedDevice {
  int64_t limit = 0;  // what the device has; 0: no limit was given
  int64_t live = 0;   // the most that tensors hold at a time
  // What LibTorch's CUDA allocator reserves at most. -1: not known, because `live` is only
  // predicted from a profile.
  int64_t reserved = -1;
  // The most that tensors hold as the profile predicts, even if `live` comes from a memory plan.
  // -1: not given, as in older plans.
  int64_t predicted = -1;

  friend bool operator==(const PlannedDevice& a, const PlannedDevice& b) {
    return a.limit == b.limit && a.live == b.live && a.reserved == b.reserved &&
           a.predicted == b.predicted;
  }
};

// A value type. Partition j is stage j, and worker d runs on device d.
struct PipelinePlan {
  std::string model;        // a name for people; may be empty
  std::string profiled_on;  // the profile's device
  // The type that autocast casts to ("bfloat16"), for the profile and for the memory. Empty:
  // autocast is off.
  std::string autocast = {};
  // Whether batch norms are deferred (GPipeOptions::deferred_batch_norm), for the profile and for
  // the memory.
  bool deferred_batch_norm = false;
  int64_t rows = 1;  // rows of a mini-batch
  std::vector<int64_t> balance = {1};
  int64_t chunks = 1;
  // Indices of the inputs that all micro-batches share (GPipeOptions::shared_inputs).
  std::vector<int64_t> shared_inputs = {};
  std::vector<Checkpoint> checkpoints = {Checkpoint::kNever};  // one for each partition
  // A name of schedule_by_name(), or "search".
  std::string schedule_name = "1f1b";
  Schedule schedule = Schedule::one_f_one_b(1, 1);

  double step = 0;  // predicted seconds of a step, without the optimizer
  // A lower bound: every step of these rows on as many such devices is predicted to take at least
  // this.
  double lower_bound = 0;
  std::vector<PlannedDevice> devices = {PlannedDevice()};

  // The worker of each stage.
  Placement placement() const { return schedule.placement(); }
  // How much longer a step takes than the lower bound: 0.02 is 2 %. 0 if there are no times. Never
  // negative, although the two sums may round differently where they are equal.
  double gap() const { return lower_bound > 0 ? std::max(step / lower_bound - 1, 0.0) : 0.0; }

  friend bool operator==(const PipelinePlan& a, const PipelinePlan& b);
  friend bool operator!=(const PipelinePlan& a, const PipelinePlan& b) { return !(a == b); }
};

// Throws std::invalid_argument with a message that begins with `prefix` for a plan that no pipeline
// could run: numbers of partitions, micro-batches or devices that differ from the schedule's,
// counts below 1, rows and chunks that do not give the schedule's micro-batches, a negative index
// of an input, times that are negative or not finite, a lower bound above the step, negative bytes,
// more bytes than the limit or than are reserved, a schedule that does not verify with buffered
// sends.
void check_plan_value(const PipelinePlan& plan, const std::string& prefix);

// Writes a plan as text for people and for diffs, and reads it back exactly, but for line breaks in
// names, which become spaces: a line for each field, then the schedule's own text
// (Schedule::to_text).
//
//   gpipe plan 1
//   model unet:5,64
//   profiled_on nominal, from FLOPs
//   autocast bfloat16        (only if it was enabled)
//   deferred_batch_norm true (only if they are)
//   rows 32
//   balance 61 57
//   chunks 8
//   shared_inputs 1          (only if there are some)
//   checkpoints always never
//   schedule zb-h1
//   step 0.25
//   lower_bound 0.24
//   device 0 limit 23622320128 live 9876543210 reserved 10737418240 predicted 9900000000
//   device 1 limit 23622320128 live 9876543210 reserved 10737418240 predicted 9900000000
//   stages 2
//   micro_batches 8
//   worker 0: F0.0 F0.1 I0.0 ...
//
// plan_from_text() also accepts empty lines and comments that start with '#'. It throws
// std::invalid_argument with a message that begins with `file` and names the line, or as
// check_plan_value() does.
std::string plan_to_text(const PipelinePlan& plan);
PipelinePlan plan_from_text(std::string_view text, const std::string& file);

// The same as JSON: {"format": "gpipe plan", "version": 1, "model": ..., the other fields by their
// names, "schedule": the schedule's text, "placement": the worker of each stage}. "placement" must
// agree with the schedule. Numbers keep all their digits. Unknown fields are ignored.
std::string plan_to_json(const PipelinePlan& plan);
PipelinePlan plan_from_json(const std::string& text, const std::string& file);

// Reads either format. Throws std::invalid_argument if the file cannot be read, otherwise as
// plan_from_text() or plan_from_json().
PipelinePlan load_plan(const std::string& path);

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_PIPELINE_PLAN_H_
