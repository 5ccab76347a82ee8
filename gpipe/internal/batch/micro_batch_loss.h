// MicroBatchLoss: the caller's loss function, called for each micro-batch, and its mean or sum over
// the mini-batch.
#ifndef GPIPE_INTERNAL_BATCH_MICRO_BATCH_LOSS_H_
#define GPIPE_INTERNAL_BATCH_MICRO_BATCH_LOSS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gpipe/internal/batch/mini_batch.h"
#include "gpipe/internal/cell/cell.h"
#include "gpipe/options.h"

namespace gpipe::internal {

// The loss of a micro-batch.
struct LossResult {
  at::Tensor loss;  // a scalar that requires a gradient, unless there is no backward
  at::Tensor seed;  // the gradient that its backward starts with; undefined: none, or a share of 0
  Sinks targets;    // one packet with the targets
};

// Takes the weights of the micro-batches here, and returns those of all replicas, in their order.
using WeightsOfAll = std::function<std::vector<double>(const std::vector<double>&)>;

// Calls the caller's loss function for each micro-batch.
//
// Requirements: `loss_fn` outlives this object.
//
// Thread-safety: the call operator runs on the last stage's worker; everything else is called
// outside a run.
class MicroBatchLoss {
 public:
  // Cuts the targets. `backward`: whether a backward starts at the losses. `weights_of_all`: null
  // without other replicas. Throws c10::ValueError for targets that do not fit `mini_batch` or
  // `device`, and for weights that are negative, not finite, all zero, or given together with a
  // sum, and for a StepOptions::loss_scale that is not positive and finite.
  MicroBatchLoss(const Tensors& targets, c10::Device device, MiniBatch mini_batch,
                 const LossFn& loss_fn, const StepOptions& options, bool backward = true,
                 const WeightsOfAll& weights_of_all = nullptr);

  // The loss of micro-batch i. Throws c10::ValueError if it is not a real number or requires no
  // gradient though a backward starts at it, for outputs that do not have the micro-batch's rows,
  // and under StepOptions::check_finite for a loss that counts and is not finite.
  LossResult operator()(int64_t i, const Tensors& outputs);

  // After the run: the losses of the micro-batches. NaN on meta, where nothing has a value.
  std::vector<double> values() const;
  // The share of each micro-batch's loss in the loss of the mini-batch: see total_loss().
  const std::vector<double>& shares() const { return shares_; }
  // A warning for a caller whose loss is NaN: which micro-batches it comes from, and how to find
  // the place. If other micro-batches have a number, it also says that the NaN may be a mean over
  // nothing. Empty on meta.
  std::string nan_text(const std::vector<double>& values) const;

 private:
  Tensors on_host() const;

  const LossFn& loss_fn_;
  const bool backward_;
  const bool check_finite_;
  const double loss_scale_;
  const MiniBatch mini_batch_;
  std::vector<Tensors> targets_;    // [micro-batch]
  std::vector<bool> target_wants_;  // [target] requires a gradient
  std::vector<double> shares_;      // [micro-batch] share of its loss in the total
  bool weights_by_rows_ = false;    // because the caller chose neither a weight nor a sum
  std::vector<at::Tensor> losses_;  // [micro-batch]
};

// The loss of a mini-batch, from the losses and shares of its micro-batches in all replicas.
double total_loss(const std::vector<double>& losses, const std::vector<double>& shares);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BATCH_MICRO_BATCH_LOSS_H_
