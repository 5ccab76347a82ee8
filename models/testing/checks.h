#ifndef MODELS_TESTING_CHECKS_H_
#define MODELS_TESTING_CHECKS_H_

#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <string>
#include <vector>

#include "models/testing/golden.h"

// GoogleTest expectations shared by the models' tests.
namespace gpipe::models::testing {

// Makes the model of one golden case, in any state; it is cast and filled by the check.
using Build = std::function<torch::nn::Sequential()>;

// Structure, and every number of the golden case with each of its fills.
void expect_golden(const std::string& label, const Build& build);

// The golden pipeline run with checkpoint "never" of this label, with the plain model run
// micro-batch by micro-batch.
void expect_golden_micro_batched(const std::string& label, const Build& build);

// "1>2 0>2": from which to which partition each skip goes, the last stashed first.
std::string skip_partitions(const torch::nn::Sequential& model,
                            const std::vector<int64_t>& balance);

// A clone has tensors of its own and gives the same output.
void expect_clone_works(torch::nn::Sequential model, const at::Tensor& input);

}  // namespace gpipe::models::testing

#endif  // MODELS_TESTING_CHECKS_H_
