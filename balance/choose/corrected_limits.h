// correct_by_plans: chooses within limits of memory, plans what was chosen, corrects the limits by
// the errors of the prediction, and chooses again.
//
// A search knows what a choice takes only by a prediction. A plan knows it exactly, but costs
// seconds.
//
// Needs no LibTorch. Internal to this project.
#ifndef BALANCE_CHOOSE_CORRECTED_LIMITS_H_
#define BALANCE_CHOOSE_CORRECTED_LIMITS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "balance/choose/fitting_cut.h"
#include "balance/costs/profile.h"
#include "balance/step/explain.h"

namespace gpipe::balance {

// The most plans that correct limits.
inline constexpr int kMostPlans = 6;

// How far the predicted memory of a device was off.
struct PredictionError {
  size_t device = 0;
  int64_t bytes = 0;  // the planned bytes less the predicted ones
  // Whether the planned bytes exceed the device's room. Then its limit is never raised.
  bool exceeds = false;
};

// The errors of a choice, corrected one after the other; the limits of devices that are not named
// stay. None: no further choice is wanted.
using PredictionErrors = std::optional<std::vector<PredictionError>>;

// Calls `attempt` with the limits of each device, which are its `room` at first, `most` times at
// most. After each call, the limit of a device becomes its room less its error.
void correct_by_plans(
    std::vector<int64_t> room, int most,
    const std::function<PredictionErrors(const std::vector<int64_t>& limits)>& attempt);

// The same for smallest_cut(): calls `attempt` with each cut and the limits under which it was
// found, until a cut is found again. `options.limits` are the room of each partition.
void correct_smallest_cut(
    const Profile& profile, FittingCutOptions options, int most,
    const std::function<PredictionErrors(const Explanation& cut,
                                         const std::vector<int64_t>& limits)>& attempt);

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_CORRECTED_LIMITS_H_
