// Model checks: finds mistakes in a model, a balance and options before anything is made or moved.
#ifndef GPIPE_INTERNAL_CALL_MODEL_CHECKS_H_
#define GPIPE_INTERNAL_CALL_MODEL_CHECKS_H_

#include <c10/core/Device.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/internal/processes/stage_map.h"
#include "gpipe/options.h"

namespace gpipe::internal {

// A text like "{1, 2}".
std::string list_text(const std::vector<int64_t>& values);

// All of these functions throw c10::ValueError with a text that says what was given and what to do.

// Checks the numbers and modes of the options, but neither the balance nor the devices.
void check_options(const GPipeOptions& options);
// With replicas (World::grid): checks that their number fits chunks and groups.
void check_replicas(const GPipeOptions& options);
// Throws c10::ValueError for a norm in training mode that keeps running statistics: each replica
// would have statistics of its own rows.
void check_no_running_statistics(
    const torch::OrderedDict<std::string, std::shared_ptr<torch::nn::Module>>& layers);

void check_balance(const std::vector<int64_t>& balance, size_t layers);

// Refuses layers that are null, and one object that occurs twice.
void check_layers(const torch::nn::Sequential& module);

// Refuses, with c10::TypeError, layers that take several arguments, and partitions whose first
// layer takes an argument that cannot travel between partitions. The balance must fit the model.
void check_arguments(const torch::nn::Sequential& module, const std::vector<int64_t>& balance);

// Refuses parameters and buffers that would have to be on two devices. With several processes
// (`stage_map`; null: there is one), also refuses buffers that two of them would have, and
// different tensors over the same memory. The balance must fit the model.
void check_sharing(const torch::nn::Sequential& module, const std::vector<int64_t>& balance,
                   const std::vector<c10::Device>& devices, const StageMap* stage_map = nullptr);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CALL_MODEL_CHECKS_H_
