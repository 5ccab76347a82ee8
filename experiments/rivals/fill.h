// fill_parameters, filled_input, filled_target: numbers that depend on positions alone, so that
// programs in several languages train the same network on the same data.
#ifndef GPIPE_EXPERIMENTS_RIVALS_FILL_H_
#define GPIPE_EXPERIMENTS_RIVALS_FILL_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>

#include "models/by_name.h"

namespace gpipe::experiments {

// From -1 to 1, for element `i` of tensor `k`. common.py has the same function.
double fill_value(uint32_t k, uint32_t i);

// Overwrites all parameters; `k` is their place in parameters(). Matrices and kernels are uniform
// with a variance of one over their inputs; vectors are near one ("weight") or near zero.
void fill_parameters(torch::nn::Module& module);

// Images [rows, ...] from 0 to 1.
at::Tensor filled_input(const models::NamedModel& model, int64_t rows);
// Class numbers [rows], or pixels from 0 to 1: what the model's loss takes.
at::Tensor filled_target(const models::NamedModel& model, int64_t rows);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_RIVALS_FILL_H_
