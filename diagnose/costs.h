// Costs: what a model's layers cost for micro-batches of any number of rows.
#ifndef DIAGNOSE_COSTS_H_
#define DIAGNOSE_COSTS_H_

#include <cstdint>
#include <vector>

#include "balance/costs/profile.h"
#include "balance/cut/partition.h"

namespace gpipe::diagnosis {

// Measured costs: a value type.
struct Costs {
  // Profiles of the same layers for different numbers of rows, the fewest first. There is at least
  // one.
  std::vector<balance::Profile> profiles;
  // Seconds of the loss function for each row of a micro-batch.
  double loss_forward = 0;
  double loss_backward = 0;
  // Seconds for each byte that a cell keeps for its backward while all micro-batches are held. This
  // time is for memory that is given back between steps and touched anew.
  double fresh_memory = 0;
  // Ranges of layers within which no cut is allowed.
  std::vector<balance::LayerRange> together;

  // The costs for micro-batches of `rows` rows. Between two profiles times and bytes are
  // interpolated; beyond them they are proportional to the rows.
  balance::Profile at(int64_t rows) const;
};

// The seconds of all layers for a micro-batch, forward and backward.
double work_of(const balance::Profile& profile);

}  // namespace gpipe::diagnosis

#endif  // DIAGNOSE_COSTS_H_
