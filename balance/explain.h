// The header for users; the code is in balance/step/explain.h.
#ifndef GPIPE_BALANCE_EXPLAIN_H_
#define GPIPE_BALANCE_EXPLAIN_H_

#include "balance/step/explain.h"  // IWYU pragma: export

#endif  // GPIPE_BALANCE_EXPLAIN_H_
