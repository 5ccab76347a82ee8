// The header for users; the code is in balance/costs/profile.h.
#ifndef GPIPE_BALANCE_PROFILE_H_
#define GPIPE_BALANCE_PROFILE_H_

#include "balance/costs/profile.h"  // IWYU pragma: export

#endif  // GPIPE_BALANCE_PROFILE_H_
