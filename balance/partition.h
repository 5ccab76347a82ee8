// The header for users; the code is in balance/cut/partition.h.
#ifndef GPIPE_BALANCE_PARTITION_H_
#define GPIPE_BALANCE_PARTITION_H_

#include "balance/cut/partition.h"  // IWYU pragma: export

#endif  // GPIPE_BALANCE_PARTITION_H_
