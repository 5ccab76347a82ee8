// What becomes of running statistics when a mini-batch passes a batch norm in micro-batches.
//
//  - Plain: each micro-batch updates them once, as a loop over micro-batches would. A recompute
//  does
//    not update them again.
//  - Deferred: micro-batches are normalised by their own statistics, and after the whole mini-batch
//    the running statistics are updated once, as if the layer had seen it as one (GPipe, Huang et
//    al. 2018, section 2; unbiased variance, like torch::nn::BatchNorm).
//
// Both work on the operator (aten::batch_norm), so they hold for any module that calls it,
// registered or not; the user's modules are not replaced.
#ifndef GPIPE_INTERNAL_BATCH_NORM_H_
#define GPIPE_INTERNAL_BATCH_NORM_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace torch {
class Library;
}  // namespace torch

namespace gpipe::internal {

// The statistics of one mini-batch, gathered over its micro-batches, for the batch norms of one
// stage. Not thread-safe: written by the stage's worker, committed after the worker has stopped.
class DeferredStatistics {
 public:
  // Adds a micro-batch. `input` is (N, C, ...); the running tensors are the batch norm's own.
  void add(const at::Tensor& input, const at::Tensor& running_mean, const at::Tensor& running_var,
           double momentum);

  // A module whose counter of batches is to grow by one at commit().
  void count(const at::Tensor& num_batches_tracked);

  // Updates the running statistics once and forgets what was gathered.
  void commit();

 private:
  // Combined by the pairwise update of Chan, Golub, LeVeque (1979), which does not cancel as a sum
  // of squares does. In double, whatever the dtype of the buffers.
  struct Moments {
    at::Tensor running_mean;
    at::Tensor running_var;
    at::Tensor mean;               // (C)
    at::Tensor squared_deviation;  // (C), summed
    int64_t elements = 0;          // per channel
    double momentum = 0;
  };
  std::unordered_map<const c10::TensorImpl*, Moments> moments_;
  std::vector<at::Tensor> counters_;
};

enum class RunningStatistics : uint8_t {
  kUpdate,  // as the module would alone
  kKeep,    // a recompute: leave them
  kDefer,   // gather them in DeferredStatistics
};

// Governs, on this thread and under an OperatorModeScope, the batch norms called while it lives.
// `modules` are those whose counter num_batches_tracked a kKeep or kDefer must shield: the batch
// norm modules of the stage (see batch_norms_of).
class RunningStatisticsScope {
 public:
  struct Module {
    at::Tensor* counter;  // the module's member num_batches_tracked
    at::Tensor scratch;   // stands in for it
  };

  RunningStatisticsScope(RunningStatistics policy, DeferredStatistics* deferred,
                         std::vector<Module>& modules);
  ~RunningStatisticsScope();
  RunningStatisticsScope(const RunningStatisticsScope&) = delete;
  RunningStatisticsScope& operator=(const RunningStatisticsScope&) = delete;

  // Called by the intercepted operator.
  static RunningStatisticsScope* current();
  RunningStatistics policy() const { return policy_; }
  DeferredStatistics* deferred() const { return deferred_; }

 private:
  void swap_counters();

  RunningStatistics policy_;
  DeferredStatistics* deferred_;
  std::vector<Module>& modules_;
  RunningStatisticsScope* former_;
};

// The BatchNorm1d, 2d and 3d modules in `module`, itself included, that track running statistics.
std::vector<RunningStatisticsScope::Module> batch_norms_of(torch::nn::Module& module);

// For operator_mode.cc.
void register_batch_norm_kernel(torch::Library& aten);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BATCH_NORM_H_
