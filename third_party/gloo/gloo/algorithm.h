// An empty header: c10d's headers include it, but use nothing of it.
#ifndef THIRD_PARTY_GLOO_GLOO_ALGORITHM_H_
#define THIRD_PARTY_GLOO_GLOO_ALGORITHM_H_

#include "gloo/context.h"

#endif  // THIRD_PARTY_GLOO_GLOO_ALGORITHM_H_
