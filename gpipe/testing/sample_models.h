// SampleModel: small models for tests of the pipeline, with every kind of layer it must handle.
#ifndef GPIPE_TESTING_SAMPLE_MODELS_H_
#define GPIPE_TESTING_SAMPLE_MODELS_H_

#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <string>
#include <vector>

#include "gpipe/options.h"

namespace gpipe::testing {

struct SampleModel {
  std::string name;
  // A new model with the same parameters at every call.
  std::function<torch::nn::Sequential()> make;
  // `rows` samples of its inputs, and of the targets for `loss`; the same at every call.
  std::function<Tensors(int64_t rows)> inputs;
  std::function<Tensors(int64_t rows)> targets;
  LossFn loss;
  int64_t layers;
};

// A chain of linear layers; a chain with dropout; convolutions with batch norm; nested skips, and
// skips past several layers; layers with several values, some of them integers.
const std::vector<SampleModel>& sample_models();

// Three convolutions, with a skip from the first to the last; 2 channels. A new model with the same
// parameters at every call.
torch::nn::Sequential convolutions_with_a_skip();

// All ways to cut `layers` layers into `partitions` non-empty partitions.
std::vector<std::vector<int64_t>> all_balances(int64_t layers, int64_t partitions);

}  // namespace gpipe::testing

#endif  // GPIPE_TESTING_SAMPLE_MODELS_H_
