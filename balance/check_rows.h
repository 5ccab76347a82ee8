// The header for users; the code is in balance/costs/check_rows.h.
#ifndef GPIPE_BALANCE_CHECK_ROWS_H_
#define GPIPE_BALANCE_CHECK_ROWS_H_

#include "balance/costs/check_rows.h"  // IWYU pragma: export

#endif  // GPIPE_BALANCE_CHECK_ROWS_H_
