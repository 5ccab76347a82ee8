// The header for users; the code is in balance/choose/training.h.
#ifndef GPIPE_BALANCE_TRAINING_H_
#define GPIPE_BALANCE_TRAINING_H_

#include "balance/choose/training.h"  // IWYU pragma: export

#endif  // GPIPE_BALANCE_TRAINING_H_
