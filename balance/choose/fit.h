// fit: how a model must be cut to fit on given devices, and the largest model that does.
//
// Nothing is measured and no device is needed: memory is planned (balance/memory/memory_plan.h),
// times come from counted operations (balance/costs/flops.h). docs/design/balance.md says how it is
// searched.
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

// Called before each part of a search, and again and again during it, on any one thread at a time.
// What it throws ends the search. `note` says what is being done.
using FitProgress = std::function<void(const std::string& note)>;

struct FitOptions {
  // As in MemoryPlanOptions.
  TORCH_ARG(MakeOptimizer, optimizer) = nullptr;
  TORCH_ARG(bool, zero_grad) = true;
  TORCH_ARG(bool, deferred_batch_norm) = false;
  // Default: Schedule::one_f_one_b.
  TORCH_ARG(ScheduleGenerator, schedule) = nullptr;

  // Bytes of each device to leave free, for what a plan cannot see: kernels' workspaces and the
  // driver's own memory. At least 0.
  TORCH_ARG(int64_t, margin) = 0;

  // What may be chosen: numbers of micro-batches from 1 to the rows of the mini-batch, and
  // checkpoint modes. Default: all powers of two and the number of rows, without those of which a
  // micro-batch has one row where the model has batch norms (balance/choose/default_chunks.h); all
  // modes.
  TORCH_ARG(std::vector<int64_t>, chunks) = {};
  TORCH_ARG(std::vector<Checkpoint>, checkpoints) = {};

  // How fast the devices are, all of them.
  TORCH_ARG(NominalDevice, speed) = {};

  // Default: none.
  TORCH_ARG(FitProgress, progress) = nullptr;
};

// A way to train a model on the devices, one partition on each; or, if none fits, the one that
// comes nearest.
struct Fit {
  bool fits = false;
  std::vector<int64_t> balance;
  int64_t chunks = 0;
  Checkpoint checkpoint = Checkpoint::kNever;
  // Predicted seconds of a training step, without the optimizer, on devices of that speed.
  double step = 0;

  // Of that step. `reserved` is what the allocator takes of the room it has, and -1 where that is
  // too little. The trace has its turns only. If nothing fits, a step may have been planned with
  // fewer micro-batches than it has.
  MemoryPlan plan;
  // [device] In bytes: what there is without the margin, and what is needed.
  std::vector<int64_t> room;
  std::vector<int64_t> needed;

  // If it does not fit: which device is over by how much, and what takes the memory there.
  // "device 1 needs 2.10 GiB but has room for 2.00, 0.10 too little: ..."
  std::string limit;

  int64_t plans = 0;  // how many were made to find it
};

// Finds the balance, the number of micro-batches and the checkpoint mode with which the model fits
// on devices of `device_bytes`, each with its allocator's reserved memory, and with which a step is
// predicted to be fastest. Devices that are hardly filled do not matter.
//
// The answer's plan was made with all micro-batches. That no other cut is faster is as true as the
// prediction. If nothing fits, that is so for the cuts that were planned: a cut that would just fit
// may have been missed.
//
// Takes a plan or a few, and up to some thirty where nothing fits, seconds each for the largest
// published models.
//
// Throws c10::ValueError for no devices, more than there are layers, a device without a byte, a
// margin below 0 or not below every device's bytes, and chunks out of range; for a model or
// mini-batch as memory_plan() does; and what a layer throws, with its place. A layer may need
// more rows than one: then give `chunks`.
//
// Example:
//   Fit found = fit({[] { return models::unet(); }, {images}, {masks}, loss}, {22 * gib, 22 * gib},
//                   FitOptions().optimizer(sgd));
//   GPipe pipe(models::unet(), GPipeOptions(found.balance).chunks(found.chunks)...);
Fit fit(const Training& training, const std::vector<int64_t>& device_bytes,
        const FitOptions& options = {});

// The k-th member of a family of models, k = 1, 2, ...: the larger k, the more memory it needs.
using Family = std::function<Training(int64_t member)>;

struct Largest {
  int64_t member = 0;  // 0: not even the first fits
  Fit fit;             // its; not set if none fits
  // The next member, how near it comes, and what is in its way. 0 if `most` fits.
  int64_t next = 0;
  Fit next_fit;
};

// The largest of the members 1 to `most` that fits, by doubling and then by bisection; then as
// fit(). Members that have fewer layers than there are devices are taken as ones that fit. Whether
// a member fits is found out with the cuts and modes that take the least memory, not with all.
//
// Throws as fit() does, and c10::ValueError for `most` below 1.
Largest largest(const Family& family, int64_t most, const std::vector<int64_t>& device_bytes,
                const FitOptions& options = {});

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_FIT_H_
