// The header for users; the code is in balance/choose/fit.h.
#ifndef GPIPE_BALANCE_FIT_H_
#define GPIPE_BALANCE_FIT_H_

#include "balance/choose/fit.h"  // IWYU pragma: export

#endif  // GPIPE_BALANCE_FIT_H_
