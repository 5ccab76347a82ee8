// What of a model, a balance and options can be told to be wrong before anything is made or moved.
#ifndef GPIPE_INTERNAL_MODEL_CHECKS_H_
#define GPIPE_INTERNAL_MODEL_CHECKS_H_

#include <c10/core/Device.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/options.h"

namespace gpipe::internal {

// "{1, 2}"
std::string list_text(const std::vector<int64_t>& values);

// All throw c10::ValueError with what was given and what to do.

// Numbers and modes; not the balance, and not the devices.
void check_options(const GPipeOptions& options);

void check_balance(const std::vector<int64_t>& balance, size_t layers);

// Layers that are null, or one object twice.
void check_layers(const torch::nn::Sequential& module);

// Layers that take several arguments, or first layers of a partition that take what cannot travel:
// c10::TypeError. The balance must be the model's.
void check_arguments(const torch::nn::Sequential& module, const std::vector<int64_t>& balance);

// Parameters and buffers that would have to be on two devices. The balance must be the model's.
void check_sharing(const torch::nn::Sequential& module, const std::vector<int64_t>& balance,
                   const std::vector<c10::Device>& devices);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_MODEL_CHECKS_H_
