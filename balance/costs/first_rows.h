// first_rows: a smaller mini-batch of a sample.
//
// Internal to //balance.
#ifndef BALANCE_COSTS_FIRST_ROWS_H_
#define BALANCE_COSTS_FIRST_ROWS_H_

#include <cstdint>
#include <vector>

#include "gpipe/loss_fn.h"

namespace gpipe::balance {

// Views of the first `rows` rows of each tensor. Those with a number in `shared` stay whole, as in
// GPipeOptions::shared_inputs, and so do tensors without dimensions; undefined ones stay undefined.
//
// Requirements: the others have that many rows.
Tensors first_rows(const Tensors& tensors, int64_t rows, const std::vector<int64_t>& shared);

}  // namespace gpipe::balance

#endif  // BALANCE_COSTS_FIRST_ROWS_H_
