// Its place is gpipe/distributed/control/failure.h; this name stays for programs that have it.
#ifndef GPIPE_DISTRIBUTED_FAILURE_H_
#define GPIPE_DISTRIBUTED_FAILURE_H_

#include "gpipe/distributed/control/failure.h"  // IWYU pragma: export

#endif  // GPIPE_DISTRIBUTED_FAILURE_H_
