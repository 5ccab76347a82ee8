// first_rows: the first rows of a sample, as a smaller mini-batch. device_of: where a sample and
// its model are.
//
// Internal to //balance.
#ifndef BALANCE_COSTS_FIRST_ROWS_H_
#define BALANCE_COSTS_FIRST_ROWS_H_

#include <c10/core/Device.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <vector>

#include "gpipe/loss_fn.h"

namespace gpipe::balance {

// Returns views of the first `rows` rows of each tensor. Tensors whose index is in `shared` stay
// whole, as in GPipeOptions::shared_inputs, and so do tensors without dimensions. Undefined tensors
// stay undefined.
//
// Requirements: the tensors that are cut have at least `rows` rows.
Tensors first_rows(const Tensors& tensors, int64_t rows, const std::vector<int64_t>& shared);

// The device of the first tensor that is defined, of the model's parameters and then of the sample.
// `otherwise`: the device if there is none.
c10::Device device_of(const torch::nn::Sequential& model, const Tensors& sample,
                      c10::Device otherwise);

}  // namespace gpipe::balance

#endif  // BALANCE_COSTS_FIRST_ROWS_H_
