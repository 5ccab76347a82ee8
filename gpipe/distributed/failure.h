// failure: the old path of gpipe/distributed/control/failure.h, kept for programs that include it.
#ifndef GPIPE_DISTRIBUTED_FAILURE_H_
#define GPIPE_DISTRIBUTED_FAILURE_H_

#include "gpipe/distributed/control/failure.h"  // IWYU pragma: export

#endif  // GPIPE_DISTRIBUTED_FAILURE_H_
