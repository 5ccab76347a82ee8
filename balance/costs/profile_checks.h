// check_profile: refuses a profile that cannot have been measured.
#ifndef BALANCE_COSTS_PROFILE_CHECKS_H_
#define BALANCE_COSTS_PROFILE_CHECKS_H_

#include <string>

#include "balance/costs/profile.h"

namespace gpipe::balance {

// Describes the autocast guard of a profile or a plan: "under autocast to bfloat16", "without
// autocast".
std::string under_autocast(const std::string& autocast);

// Describes the guard and deferred batch norms as the end of a phrase: ", under autocast to
// bfloat16, batch norms deferred". Empty without a guard and without deferred batch norms.
std::string training_terms(const std::string& autocast, bool deferred_batch_norm);

// Throws std::invalid_argument with a message that begins with `prefix` and names the field
// ("layers[3].forward"): for no layers, a time that is negative or not finite, a negative number of
// bytes or rows, and a skip that does not lead from a layer to a later one.
void check_profile(const Profile& profile, const std::string& prefix);

}  // namespace gpipe::balance

#endif  // BALANCE_COSTS_PROFILE_CHECKS_H_
