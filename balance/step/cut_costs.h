// cut_costs: the sums of a profile's layers for each stage of a cut: times, memory, and the bytes
// that stages send.
#ifndef BALANCE_STEP_CUT_COSTS_H_
#define BALANCE_STEP_CUT_COSTS_H_

#include <cstdint>
#include <vector>

#include "balance/costs/profile.h"
#include "balance/cut/partition.h"
#include "gpipe/schedule/routes.h"

namespace gpipe::balance {

// The costs of a stage's layers for one micro-batch with the profile's rows, in seconds and bytes.
struct StageCosts {
  LayerRange layers{};
  double forward = 0;
  double recompute = 0;  // the forward again, before a backward
  double backward = 0;
  double input_gradient = 0;  // the halves of a split backward
  double weight_gradient = 0;
  // The loss function, which a recompute does not run again. 0 in all stages except the last.
  double loss_forward = 0;
  double loss_backward = 0;

  int64_t parameters = 0;
  int64_t buffers = 0;
  int64_t kept = 0;  // until the backward, in addition to `received`
  // the part of kept and received that the weight half of a split backward needs
  int64_t waiting = 0;
  int64_t workspace = 0;  // the largest of a layer
  int64_t received = 0;   // the activation and the skips that arrive
  int64_t sent = 0;       // the activation and the skips that leave; 0 for the last stage
  int64_t returned = 0;   // the model's output, which the caller gets; 0 for all but the last stage
};

struct CutCosts {
  std::vector<StageCosts> stages;
  Routes routes;
  std::vector<int64_t> bytes;  // [route] bytes of one micro-batch
};

// Whether the halves of all layers' backwards were measured.
bool halves_measured(const Profile& profile);

// Computes the costs of the cut that gives stage j the next balance[j] layers. If the halves of
// backwards were measured, they are used, and the first stage has everything in the second half, as
// its inputs need no gradient. Otherwise the halves are those of split_backward()
// (balance/costs/profile.h), and everything that a stage holds waits for the second half.
//
// Without `direct_skips` each skip goes from stage to stage: every stage in between receives, holds
// and sends it.
//
// Throws std::invalid_argument for a balance that is empty, has a stage without layers, or does not
// sum up to the profile's layers.
CutCosts cut_costs(const Profile& profile, const std::vector<int64_t>& balance,
                   bool direct_skips = true);

// The costs of the layers for partition(): forward, backward and, if wanted, a recompute, as if
// every micro-batch had one.
std::vector<double> whole_costs(const Profile& profile, bool recompute);

// The cut whose partitions have the most even whole_costs().
std::vector<int64_t> even_cut(const Profile& profile, int64_t partitions,
                              const std::vector<LayerRange>& keep_together, bool recompute);

}  // namespace gpipe::balance

#endif  // BALANCE_STEP_CUT_COSTS_H_
