// filled_input, filled_target: a network's mini-batch, of numbers that depend on positions alone
// (models/hash_fill.h), so that programs in several languages train on the same data.
#ifndef GPIPE_EXPERIMENTS_RIVALS_FILL_H_
#define GPIPE_EXPERIMENTS_RIVALS_FILL_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/by_name.h"

namespace gpipe::experiments {

// Images [rows, ...] from 0 to 1, or token ids [rows, tokens].
at::Tensor filled_input(const models::NamedModel& model, int64_t rows);
// Class numbers [rows] or [rows, tokens], or pixels from 0 to 1: what the model's loss takes.
at::Tensor filled_target(const models::NamedModel& model, int64_t rows);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_RIVALS_FILL_H_
