// The header for users; the code is in balance/costs/profile_file.h.
#ifndef GPIPE_BALANCE_PROFILE_FILE_H_
#define GPIPE_BALANCE_PROFILE_FILE_H_

#include "balance/costs/profile_file.h"  // IWYU pragma: export

#endif  // GPIPE_BALANCE_PROFILE_FILE_H_
