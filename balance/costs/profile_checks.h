// check_profile: refuses a profile that cannot have been measured.
#ifndef BALANCE_COSTS_PROFILE_CHECKS_H_
#define BALANCE_COSTS_PROFILE_CHECKS_H_

#include <string>

#include "balance/costs/profile.h"

namespace gpipe::balance {

// Describes a profile's or a plan's guard of autocast: "under autocast to bfloat16", "without
// autocast".
std::string under_autocast(const std::string& autocast);

// Describes the same and batch norms, behind other words: ", under autocast to bfloat16, batch
// norms deferred". Empty: no guard, and none deferred.
std::string training_terms(const std::string& autocast, bool deferred_batch_norm);

// Throws std::invalid_argument, beginning with `prefix` and naming the field ("layers[3].forward"),
// if there are no layers, for a time that is negative or not finite, for a negative number of bytes
// or rows, and for a skip that does not lead from a layer to a later one.
void check_profile(const Profile& profile, const std::string& prefix);

}  // namespace gpipe::balance

#endif  // BALANCE_COSTS_PROFILE_CHECKS_H_
