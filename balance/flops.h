// The header for users; the code is in balance/costs/flops.h.
#ifndef GPIPE_BALANCE_FLOPS_H_
#define GPIPE_BALANCE_FLOPS_H_

#include "balance/costs/flops.h"  // IWYU pragma: export

#endif  // GPIPE_BALANCE_FLOPS_H_
