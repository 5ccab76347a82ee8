// cut_costs: what the stages of a cut take and hold, and what they send: a profile's layers summed
// up.
#ifndef BALANCE_STEP_CUT_COSTS_H_
#define BALANCE_STEP_CUT_COSTS_H_

#include <cstdint>
#include <vector>

#include "balance/costs/profile.h"
#include "balance/cut/partition.h"
#include "gpipe/schedule/routes.h"

namespace gpipe::balance {

// A stage's layers, for one micro-batch with the profile's rows: seconds and bytes.
struct StageCosts {
  LayerRange layers{};
  double forward = 0;
  double recompute = 0;  // a forward again, for a backward
  double backward = 0;
  double input_gradient = 0;  // the halves of a split backward
  double weight_gradient = 0;
  // The loss function, which a recompute does not run again. 0 in all stages but the last.
  double loss_forward = 0;
  double loss_backward = 0;

  int64_t parameters = 0;
  int64_t buffers = 0;
  int64_t kept = 0;       // until the backward, beside what is received
  int64_t waiting = 0;    // of both, for the second half of a split backward
  int64_t workspace = 0;  // of the layer that has most
  int64_t received = 0;   // the activation and the skips
  int64_t sent = 0;       // as well; 0 for the last stage
};

struct CutCosts {
  std::vector<StageCosts> stages;
  Routes routes;
  std::vector<int64_t> bytes;  // [route] of one micro-batch
};

// Whether the halves of all layers' backwards were measured.
bool halves_measured(const Profile& profile);

// The cut that gives stage j the next balance[j] layers. Halves of backwards are those that were
// measured, if they were: then the first stage, whose inputs need no gradient, has all in
// the second half. If not, they are as split_backward() (balance/costs/profile.h) says, and all
// that a stage holds waits for the second.
//
// Without `direct_skips` each skip goes from stage to stage, and is among what every stage between
// receives, holds and sends on.
//
// Throws std::invalid_argument for a balance that is empty, has a stage without layers, or does not
// sum up to the profile's layers.
CutCosts cut_costs(const Profile& profile, const std::vector<int64_t>& balance,
                   bool direct_skips = true);

}  // namespace gpipe::balance

#endif  // BALANCE_STEP_CUT_COSTS_H_
