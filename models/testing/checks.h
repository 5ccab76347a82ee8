// Checks: GoogleTest expectations that the models' tests share.
#ifndef MODELS_TESTING_CHECKS_H_
#define MODELS_TESTING_CHECKS_H_

#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <string>
#include <vector>

#include "models/testing/golden.h"

namespace gpipe::models::testing {

// Builds the model of one golden case, with any values; the check casts and fills it.
using Build = std::function<torch::nn::Sequential()>;

// Compares the model's structure, and with each fill every number, with the golden case.
void expect_golden(const std::string& label, const Build& build);

// Compares the golden pipeline run of this label with checkpoint "never" with the plain model, run
// micro-batch by micro-batch.
void expect_golden_micro_batched(const std::string& label, const Build& build);

// The skips as text, like "1>2 0>2": for each skip the partitions from and to which it goes. The
// skip that is stashed last comes first.
std::string skip_partitions(const torch::nn::Sequential& model,
                            const std::vector<int64_t>& balance);

// Expects that a clone has tensors of its own and gives the same output.
void expect_clone_works(torch::nn::Sequential model, const at::Tensor& input);

}  // namespace gpipe::models::testing

#endif  // MODELS_TESTING_CHECKS_H_
