// world_training: checks of processes with a device each: what they compute, and what happens when
// one fails.
#ifndef GPIPE_TESTING_PROCESSES_WORLD_TRAINING_H_
#define GPIPE_TESTING_PROCESSES_WORLD_TRAINING_H_

#include <c10/core/Device.h>
#include <torch/nn/modules/container/sequential.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "gpipe/gpipe.h"
#include "gpipe/testing/processes/world_ranks.h"
#include "gpipe/testing/sample_models.h"

namespace gpipe::distributed {

// How a training is spread over processes.
struct Spread {
  std::string schedule = "1f1b";
  int64_t stages = 2;
  int64_t processes = 2;  // the processes of each replica; all ranks are on devices 1, 2, ...
  int64_t replicas = 1;
  std::string links = "host";  // GPIPE_DEVICE_LINKS
  // The links by which tensors went in this process, to be compared with `links`. Empty: nothing
  // is compared.
  std::function<std::string()> used_links;
};

// Trains three steps, whose numbers of rows differ, each with clipping, and evaluates. Expects the
// losses, norms and parameter hash of one process on device 0.
void expect_one_processs_bits(const testing::SampleModel& sample, const Spread& spread);

// A layer of rank 1 throws while rank 0's device waits for what rank 1 sends. Expects that both
// ranks learn of the exception, and that the next step goes well.
void expect_an_exception_is_survived(const std::string& links);

// Rank 1 is killed while rank 0's device waits for its gradients. Expects that rank 0's kernels end
// and that it says within `limit` which rank was lost.
void expect_a_killed_rank_is_named(const std::string& links, std::chrono::milliseconds limit);

// Four pairs of Linear(5, 5) and a layer that calls `in_forward` with the pair's number and
// computes tanh.
torch::nn::Sequential layers(const std::function<void(int64_t)>& in_forward);
// Runs one step with 6 rows on `where`. Returns the bits of its loss, or what the step throws.
std::string stepped(GPipe pipe, c10::Device where);
LossFn squares();  // the mean of squared differences

// Starts ranks with GPIPE_DEVICE_LINKS=`links`. From now on this process has that value, too. If
// there are fewer GPUs than ranks, NCCL takes each rank for a host of its own, so that they share.
WorldRanks ranks_with(const std::string& links, int64_t size, const WorldRanks::Main& main);

// A number's bits, as a text with a blank at the end.
std::string bits(double number);

}  // namespace gpipe::distributed

#endif  // GPIPE_TESTING_PROCESSES_WORLD_TRAINING_H_
