// An empty header: c10d's headers include it, but use nothing of it.
#ifndef THIRD_PARTY_GLOO_GLOO_COMMON_ERROR_H_
#define THIRD_PARTY_GLOO_GLOO_COMMON_ERROR_H_

namespace gloo {}

#endif  // THIRD_PARTY_GLOO_GLOO_COMMON_ERROR_H_
