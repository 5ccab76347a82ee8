// fit: how a model must be cut to fit on given devices, and the largest model that does.
//
// Nothing is measured and no device is needed: memory is planned (balance/memory/memory_plan.h),
// and times come from counted operations (balance/costs/flops.h). docs/design/balance.md explains
// the search.
#ifndef BALANCE_CHOOSE_FIT_H_
#define BALANCE_CHOOSE_FIT_H_

#include <torch/arg.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "balance/choose/training.h"
#include "balance/costs/flops.h"
#include "balance/memory/memory_plan.h"
#include "gpipe/checkpoint.h"
#include "gpipe/options.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::balance {

// A callback that a search calls before each of its parts and repeatedly during them, from one
// thread at a time. An exception that it throws ends the search. `note` says what the search is
// doing.
using FitProgress = std::function<void(const std::string& note)>;

struct FitOptions {
  // As in MemoryPlanOptions.
  TORCH_ARG(MakeOptimizer, optimizer) = nullptr;
  TORCH_ARG(bool, zero_grad) = true;
  TORCH_ARG(bool, deferred_batch_norm) = false;
  // The schedule of a training step, with one stage on each device. Default:
  // Schedule::one_f_one_b.
  TORCH_ARG(ScheduleGenerator, schedule) = nullptr;

  // Bytes to leave free on each device for what a plan cannot see: workspaces of kernels and the
  // driver's own memory. At least 0.
  TORCH_ARG(int64_t, margin) = 0;

  // The numbers of micro-batches (1 to the rows of the mini-batch) and checkpoint modes to choose
  // from. Default: default_chunks() (balance/choose/default_chunks.h) and all modes.
  TORCH_ARG(std::vector<int64_t>, chunks) = {};
  TORCH_ARG(std::vector<Checkpoint>, checkpoints) = {};

  // The speed of each device.
  TORCH_ARG(NominalDevice, speed) = {};

  // Called during the search, see FitProgress. Default: none.
  TORCH_ARG(FitProgress, progress) = nullptr;
};

// A way to train a model on the devices, one partition on each. If no way fits, the one that
// exceeds the devices least.
struct Fit {
  bool fits = false;
  std::vector<int64_t> balance;
  int64_t chunks = 0;
  Checkpoint checkpoint = Checkpoint::kNever;
  // Predicted seconds of a training step, without the optimizer, on devices of FitOptions::speed.
  double step = 0;

  // The memory of that step. `reserved` is what the allocator reserves within the device's room, -1
  // if the room is too small. The trace has only its turns. If nothing fits, the planned step may
  // have fewer micro-batches than the real one.
  MemoryPlan plan;
  // [device] The bytes of the device less the margin, and the bytes that it needs.
  std::vector<int64_t> room;
  std::vector<int64_t> needed;

  // If it does not fit: the device that exceeds its room most, by how much, and what takes the
  // memory there: "device 1 needs 2.10 GiB but has room for 2.00, 0.10 too little: ..."
  std::string limit;

  int64_t plans = 0;  // how many plans the search made
};

// Finds the balance, the number of micro-batches and the checkpoint mode with which the model fits
// on devices of `device_bytes`, including what each device's allocator reserves, and with which the
// predicted step is shortest. A device may stay nearly empty.
//
// The plan of the result covers all micro-batches. "Shortest" is as accurate as the prediction. If
// nothing fits, this holds for the cuts that were planned: the search may miss a cut that would
// just fit.
//
// Makes one plan or a few, up to some thirty if nothing fits. A plan of the largest published
// models takes seconds.
//
// Throws c10::ValueError for no devices, more devices than layers, a device without a byte, a
// margin below 0 or not below every device's bytes, chunks out of range, and a schedule with
// several stages on a device. Throws as memory_plan() does for the model or the mini-batch. Passes
// on what a layer throws, with the layer's place. If a layer needs more than one row, give
// `chunks`.
//
// Example:
//   Fit found = fit({[] { return models::unet(); }, {images}, {masks}, loss}, {22 * gib, 22 * gib},
//                   FitOptions().optimizer(sgd));
//   GPipe pipe(models::unet(), GPipeOptions(found.balance).chunks(found.chunks)...);
Fit fit(const Training& training, const std::vector<int64_t>& device_bytes,
        const FitOptions& options = {});

// Returns the k-th member of a family of models, k = 1, 2, ...: the larger k, the more memory it
// needs.
using Family = std::function<Training(int64_t member)>;

struct Largest {
  int64_t member = 0;  // 0: not even the first member fits
  Fit fit;             // the fit of that member; not set if none fits
  // The smallest member that does not fit, and its nearest fit. 0 if `most` fits.
  int64_t next = 0;
  Fit next_fit;
};

// Finds the largest of the members 1 to `most` that fits, by doubling and then by bisection, and
// fits it as fit() does. A member with fewer layers than devices leaves devices: it is fitted on
// the first ones, one for each layer. The bisection tries only the cuts and modes that take the
// least memory.
//
// Throws as fit() does, and c10::ValueError for `most` below 1.
Largest largest(const Family& family, int64_t most, const std::vector<int64_t>& device_bytes,
                const FitOptions& options = {});

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_FIT_H_
