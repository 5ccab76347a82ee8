#include "gpipe/internal/batch/micro_batch_loss.h"

#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <typeinfo>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpipe/batch_size.h"
#include "gpipe/internal/batch/mini_batch.h"
#include "gpipe/internal/tensors/finite.h"

namespace gpipe::internal {
namespace {

// A loss function that indexes with [] a tensor that was not given reads past the end of the list.
// There it finds a few undefined tensors, which every operator refuses by name, and not arbitrary
// memory.
Tensors with_undefined_tensors_behind(const Tensors& tensors) {
  constexpr size_t kBehind = 8;
  Tensors result;
  result.reserve(tensors.size() + kBehind);
  result = tensors;
  for (size_t k = 0; k < kBehind; ++k) new (result.data() + result.size() + k) at::Tensor();
  return result;
}

// The weights of the micro-batches, not yet divided by whole_of().
std::vector<double> weights_of(const std::vector<Tensors>& targets,
                               const std::vector<int64_t>& sizes, const StepOptions& options) {
  const bool sum = options.reduction() == LossReduction::kSum;
  TORCH_CHECK_VALUE(sum || options.reduction() == LossReduction::kMean,
                    "reduction must be one of kMean and kSum, got the number ",
                    static_cast<int>(options.reduction()));
  if (sum) {
    TORCH_CHECK_VALUE(options.weight() == nullptr,
                      "StepOptions has both reduction(kSum) and a weight: a sum over the "
                      "mini-batch adds up the micro-batches' losses without weights; give one "
                      "of the two");
    return std::vector<double>(sizes.size(), 1.0);
  }
  std::vector<double> weights;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const double weight =
        options.weight() == nullptr ? static_cast<double>(sizes[i]) : options.weight()(targets[i]);
    TORCH_CHECK_VALUE(std::isfinite(weight) && weight >= 0, "the weight of micro-batch ", i,
                      " must be a finite number of 0 or more, got ", weight);
    weights.push_back(weight);
  }
  return weights;
}

// The number by which each weight is divided.
double whole_of(const std::vector<double>& weights, const StepOptions& options) {
  if (options.reduction() == LossReduction::kSum) return 1;
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  TORCH_CHECK_VALUE(options.weight() != nullptr || total > 0,
                    "an empty mini-batch (0 rows) was given, whose mean loss is not defined; "
                    "leave this mini-batch out");
  TORCH_CHECK_VALUE(total > 0 && std::isfinite(total),
                    "the weights of the micro-batches add up to ", total,
                    ", so that the mean over the mini-batch is not defined (all targets padding?); "
                    "leave this mini-batch out");
  return total;
}

}  // namespace

MicroBatchLoss::MicroBatchLoss(const Tensors& targets, c10::Device device, MiniBatch mini_batch,
                               const LossFn& loss_fn, const StepOptions& options, bool backward,
                               const WeightsOfAll& weights_of_all)
    : loss_fn_(loss_fn),
      backward_(backward),
      check_finite_(options.check_finite()),
      loss_scale_(options.loss_scale()),
      mini_batch_(std::move(mini_batch)),
      targets_(mini_batch_.micro_batches()),
      losses_(mini_batch_.micro_batches()) {
  const auto as_float = static_cast<float>(loss_scale_);
  TORCH_CHECK_VALUE(as_float > 0 && std::isfinite(as_float),
                    "StepOptions::loss_scale must be positive and finite, also as a float32, got ",
                    loss_scale_);
  if (!targets.empty()) {
    const int64_t target_rows = batch_size(targets, "target");
    TORCH_CHECK_VALUE(target_rows == mini_batch_.rows(), "the targets have ", target_rows,
                      " rows in dimension 0, but the inputs have ", mini_batch_.rows(),
                      "; dimension 0 must be the sample, in targets as in inputs: transpose() a "
                      "tensor that has it elsewhere");
    for (size_t k = 0; k < targets.size(); ++k) {
      TORCH_CHECK_VALUE(!targets[k].defined() || targets[k].device() == device, "target ", k,
                        " is on ", targets[k].device(), ", but the last partition is on ", device,
                        "; move it there with .to()");
      target_wants_.push_back(targets[k].defined() && targets[k].requires_grad());
    }
    for (size_t i = 0; i < targets_.size(); ++i) {
      targets_[i] = mini_batch_.slice(targets, static_cast<int64_t>(i));
    }
  }
  shares_ = weights_of(targets_, mini_batch_.sizes(), options);
  const double whole =
      whole_of(weights_of_all == nullptr ? shares_ : weights_of_all(shares_), options);
  for (double& share : shares_) share /= whole;
  weights_by_rows_ = options.weight() == nullptr && options.reduction() == LossReduction::kMean;
}

LossResult MicroBatchLoss::operator()(int64_t i, const Tensors& outputs) {
  for (size_t n = 0; n < outputs.size(); ++n) {
    // The rows are checked now, before any gradient is added to the caller's gradients.
    mini_batch_.check_rows(outputs[n], n, i);
  }
  LossResult result;
  Tensors targets = with_undefined_tensors_behind(targets_[i]);
  targets_[i].clear();
  for (size_t k = 0; k < targets.size(); ++k) {
    result.targets.add(0, targets[k], target_wants_[k]);
  }
  try {
    result.loss = loss_fn_(with_undefined_tensors_behind(outputs), targets);
  } catch (const std::out_of_range& error) {  // from .at(), on outputs or targets
    if (typeid(error) != typeid(std::out_of_range)) throw;
    const std::string what = error.what();
    const std::string given = "the loss function was given " + std::to_string(outputs.size()) +
                              " outputs and " + std::to_string(targets.size()) + " targets";
    // The text of libstdc++ names nothing that the user knows, so it comes last.
    const bool is_of_a_vector = what.rfind("vector::_M_range_check", 0) == 0;
    throw std::out_of_range(is_of_a_vector ? given + ", and asked for one behind them: " + what
                                           : what + "; " + given);
  }
  TORCH_CHECK_VALUE(
      result.loss.defined() && result.loss.numel() == 1,
      "the loss function must return one number per micro-batch (see StepOptions::reduction), got ",
      result.loss.defined() ? "a tensor of shape " + c10::str(result.loss.sizes())
                            : std::string("an undefined tensor"));
  TORCH_CHECK_VALUE(!result.loss.is_complex(), "the loss must be a real number, got ",
                    result.loss.dtype(), "; take at::real() or at::abs() of it");
  // A loss with the weight 0 needs no gradient, because it has no backward.
  TORCH_CHECK_VALUE(!backward_ || shares_[i] == 0 || result.loss.requires_grad(),
                    "the loss needs no gradient: no parameter and no input of the model requires "
                    "one, or the loss function detached it");
  // Without a backward, the loss is copied: it may be a tensor that the function changes later (a
  // running sum), or a view that would keep the outputs until the end.
  losses_[i] = backward_ ? result.loss.detach() : result.loss.detach().clone();
  if (check_finite_ && shares_[i] > 0) {
    check_finite(losses_[i],
                 "the loss. If all targets of this micro-batch are ignored (padding), it is a mean "
                 "over nothing: give StepOptions::weight (docs/guide/08-losses.md)");
  }
  if (backward_ && shares_[i] > 0) {
    double seed = shares_[i] * loss_scale_;
    // at::full() refuses a number that a float16 cannot hold, so such a seed is infinite.
    // GradScaler then finds infinite gradients, and reduces its scale.
    constexpr double kMostOfHalf = 65504;
    if (result.loss.scalar_type() == at::kHalf && seed > kMostOfHalf) {
      seed = std::numeric_limits<double>::infinity();
    }
    result.seed = at::full(result.loss.sizes(), seed, result.loss.options().requires_grad(false));
  }
  return result;
}

std::vector<double> MicroBatchLoss::values() const {
  std::vector<double> values;
  values.reserve(losses_.size());
  for (const at::Tensor& loss : on_host()) {
    values.push_back(loss.is_meta() ? std::numeric_limits<double>::quiet_NaN()
                                    : loss.item<double>());
  }
  return values;
}

double total_loss(const std::vector<double>& losses, const std::vector<double>& shares) {
  double total = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    // A loss with the weight 0 may be anything, e.g. NaN, which is the mean over nothing.
    if (shares[i] > 0) total += shares[i] * losses[i];
  }
  return total;
}

std::string MicroBatchLoss::nan_text(const std::vector<double>& values) const {
  std::vector<size_t> nan;
  size_t counted = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (losses_[i].is_meta()) return "";
    if (shares_[i] == 0) continue;
    ++counted;
    if (std::isnan(values[i])) nan.push_back(i);
  }
  const std::string find =
      "StepOptions::check_finite(true) names the layer that gives the first value that is not "
      "finite (docs/guide/22-nan.md)";
  if (weights_by_rows_ && !nan.empty() && nan.size() < counted) {
    return absl::StrCat("the loss of micro-batch ", nan.front(), " is nan, and those of ",
                        counted - nan.size(), " of ", counted,
                        " micro-batches are not. If all of its targets are ignored (padding), its "
                        "mean is over nothing: give StepOptions::weight, the number of those that "
                        "count (docs/guide/08-losses.md). If not, ",
                        find);
  }
  if (nan.empty()) {
    return "the loss is nan: those of the micro-batches are infinite, with both signs. " + find;
  }
  return absl::StrCat("the loss is nan in ", nan.size(), " of ", counted,
                      " micro-batches, from micro-batch ", nan.front(), " on. ", find);
}

// [micro-batch] The losses on the host, with one wait for the device instead of one for each.
Tensors MicroBatchLoss::on_host() const {
  if (losses_.empty()) return {};
  const c10::Device device = losses_.front().device();
  const auto elsewhere = [&](const at::Tensor& loss) { return loss.device() != device; };
  if (device.is_cpu() || device.is_meta() ||
      std::any_of(losses_.begin(), losses_.end(), elsewhere)) {
    return losses_;
  }
  Tensors scalars;
  scalars.reserve(losses_.size());
  for (const at::Tensor& loss : losses_) scalars.push_back(loss.reshape({}));
  return at::stack(scalars).cpu().unbind();
}

}  // namespace gpipe::internal
